// Of Daemon: the thread that writes the journal, and what one daemon leaves to the next.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "rendezvous/attend/daemon.h"
#include "rendezvous/journal/record_wire.h"
#include "rendezvous/quorum/chronicle.h"
#include "spdlog/spdlog.h"
#include "tools/base/status_macros.h"

namespace convene::rendezvous {
namespace {

// Facts that only make a restart smoother are written together, after so long at the latest.
constexpr absl::Duration kLazily = absl::Seconds(1);
// A disk that refused is asked again after this, even when nothing changes.
constexpr absl::Duration kRetry = absl::Seconds(10);
// Where decisions wait for it, sooner.
constexpr absl::Duration kRetryClosed = absl::Milliseconds(500);
// At a memory that others share.
constexpr absl::Duration kBetweenLooks = absl::Seconds(2);
constexpr absl::Duration kBetweenComplaints = absl::Minutes(1);
constexpr absl::Duration kSlowWrite = absl::Seconds(1);

}  // namespace

void Daemon::Restore(const JobRecord& record, absl::StatusOr<std::vector<IncidentView>> incidents) {
  table_.Restore(clock_->Now(), record);
  if (!incidents.ok()) return table_.MissIncidents(record);
  for (const IncidentView& incident : *incidents) {
    table_.RestoreIncident(record.founder.job_id, incident);
  }
}

absl::Status Daemon::TakeOver(const std::string& state) {
  CONVENE_ASSIGN_OR_RETURN(HandedOverJob job, DecodeHandOver(state, WallNow()));
  MutexLock lock(&mutex_);
  Restore(job.record, std::move(job.incidents));
  return absl::OkStatus();
}

void Daemon::HandOverJobs(Aftermath* aftermath) {
  for (JobTable::Succession& succession : table_.HandOver(clock_->Now())) {
    const HandedOverJob& job = succession.job;
    const Epoch epoch = job.record.epoch;
    const std::string state = EncodeHandOver(job, WallNow());
    for (const MemberId id : succession.successors) {
      Queue({id, DaemonEvent{epoch, HandOver{state}}}, aftermath);
    }
    for (const MemberId id : succession.others) {
      Queue({id, DaemonEvent{epoch, HandOver{}}}, aftermath);
    }
    aftermath->log.push_back({absl::StrCat(
        "job ", job.record.founder.job_id, ": epoch ", epoch.value(), " is handed over, ",
        succession.successors.size(), " agents may serve in this daemon's place")});
  }
}

absl::Duration Daemon::RetryDelay() const { return tenure_ != nullptr ? kRetryClosed : kRetry; }

Daemon::Errand Daemon::AwaitErrand() {
  while (!shutdown_) {
    const bool is_current = journal_->is_current();
    const bool may_wait = tenure_ != nullptr && !is_current;
    if (table_.last_change() != written_change_ && !may_wait) return Errand::kWrite;
    MonotonicTime write_at = MonotonicTime::InfiniteFuture();
    if (!is_current || table_.has_changes()) {
      write_at = wrote_at_ + (is_current ? kLazily : RetryDelay());
    }
    const MonotonicTime look_at = tenure_ != nullptr && MaySpeak()
                                      ? std::max(wrote_at_, looked_at_) + kBetweenLooks
                                      : MonotonicTime::InfiniteFuture();
    const MonotonicTime next = std::min(write_at, look_at);
    const MonotonicTime now = clock_->Now();
    if (next <= now) return write_at <= now ? Errand::kWrite : Errand::kLook;
    if (next == MonotonicTime::InfiniteFuture()) {
      changed_.Wait(&mutex_);
    } else {
      changed_.WaitFor(&mutex_, next - now);
    }
  }
  return table_.has_changes() ? Errand::kWrite : Errand::kEnd;
}

void Daemon::RecordUntilShutdown() {
  for (;;) {
    RecordChanges changes;
    IncidentChanges incidents;
    int64_t change = 0;
    Errand errand = Errand::kEnd;
    {
      MutexLock lock(&mutex_);
      errand = AwaitErrand();
      if (errand == Errand::kEnd) return;
      if (errand == Errand::kWrite) {
        changes = table_.TakeChanges(clock_->Now());
        incidents = table_.TakeIncidents();
        change = table_.last_change();
      }
    }
    if (errand == Errand::kLook) {
      Look();
      continue;
    }
    // Before the journal knows the new job: a daemon that is killed in between must not give it
    // another's reports.
    for (const std::string& id : changes.forgotten) reports_.erase(id);
    for (const std::string& id : incidents.replaced) reports_.erase(id);
    forgotten_.merge(incidents.replaced);
    ForgetReports();
    for (auto& [id, incident] : incidents.incidents) {
      auto& reports = reports_[id];
      reports.insert_or_assign(incident.number, std::move(incident));
      if (reports.size() > Chronicle::kMostIncidents) reports.erase(reports.begin());
    }
    Write(changes);
    forgotten_.insert(changes.forgotten.begin(), changes.forgotten.end());
    Aftermath aftermath;
    {
      MutexLock lock(&mutex_);
      const bool fails_closed = tenure_ != nullptr;
      if (fails_closed && !journal_->is_current()) {
        if (shutdown_) return;
        continue;
      }
      written_change_ = change;
      table_.set_survives_restart(journal_->is_current());
      aftermath = Release();
    }
    Finish(aftermath);
    ForgetReports();
    WriteReports();
  }
}

void Daemon::ForgetReports() {
  while (!forgotten_.empty()) {
    const absl::Status status = journal_->incidents()->Forget(*forgotten_.begin());
    if (!status.ok()) return ComplainOfReports(status);
    forgotten_.erase(forgotten_.begin());
  }
}

// A store that is slow or away holds the decisions behind up once, and not once for each report.
// Reports of jobs that are forgotten go first: a job of the same name may have some of its own.
void Daemon::WriteReports() {
  while (forgotten_.empty() && !reports_.empty()) {
    auto& [id, reports] = *reports_.begin();
    const auto first = reports.begin();
    const absl::Status written = journal_->incidents()->Write(id, first->second);
    if (!written.ok()) return ComplainOfReports(written);
    reports.erase(first);
    if (reports.empty()) reports_.erase(reports_.begin());
  }
}

void Daemon::ComplainOfReports(const absl::Status& status) {
  const MonotonicTime now = clock_->Now();
  if (now < complains_of_reports_at_) return;
  complains_of_reports_at_ = now + kBetweenComplaints;
  spdlog::warn(
      "rendezvous: reports of incidents wait in memory until they can be written, and those of "
      "runs that are over removed, with a later decision: {}",
      std::string(status.message()));
}

void Daemon::Write(const RecordChanges& changes) {
  const bool was_current = journal_->is_current();
  const MonotonicTime begin = clock_->Now();
  const absl::Status status = journal_->Append(changes);
  wrote_at_ = clock_->Now();
  if (!status.ok() && (was_current || wrote_at_ - complained_at_ >= kBetweenComplaints)) {
    complained_at_ = wrote_at_;
    Complain(status);
  } else if (status.ok() && !was_current) {
    spdlog::info("rendezvous: the journal is written again");
  }
  if (wrote_at_ - begin >= kSlowWrite) {
    spdlog::warn(
        "rendezvous: the journal took {}: decisions wait for the disk under --state-dir or for "
        "etcd's, give it a local and less busy one",
        absl::FormatDuration(wrote_at_ - begin));
  }
}

void Daemon::Look() {
  const absl::Status status = journal_->Look();
  looked_at_ = clock_->Now();
  if (status.ok()) return;
  if (absl::IsAborted(status)) {
    spdlog::warn("rendezvous: {}", std::string(status.message()));
  } else if (looked_at_ - complained_at_ >= kBetweenComplaints) {
    complained_at_ = looked_at_;
    spdlog::warn(
        "rendezvous: whether this daemon still leads cannot be seen: {}. It looks again every {}, "
        "and lets another daemon lead if that goes on",
        std::string(status.message()), absl::FormatDuration(kBetweenLooks));
  }
}

void Daemon::Complain(const absl::Status& status) const {
  if (tenure_ != nullptr) {
    spdlog::error(
        "rendezvous: the journal cannot be written: {}. Running workers go on, but nothing is "
        "decided until it is written: it is tried again every {}, for as long as this daemon may "
        "lead",
        std::string(status.message()), absl::FormatDuration(RetryDelay()));
  } else {
    spdlog::error(
        "rendezvous: the journal cannot be written: {}. Jobs go on, but if this daemon ends now "
        "their workers will be restarted. Make room or mend the disk: it is tried again every {}",
        std::string(status.message()), absl::FormatDuration(RetryDelay()));
  }
}

}  // namespace convene::rendezvous

#include "rendezvous/attend/daemon.h"

#include <malloc.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "spdlog/spdlog.h"
#include "tools/base/status_macros.h"
#include "tools/base/text.h"

namespace convene::rendezvous {
namespace {

constexpr absl::Duration kHelloTimeout = absl::Seconds(10);
constexpr absl::Duration kLongestSleep = absl::Hours(1);
// The wall clock has been set when it differs from the monotonic one by so much more than before.
constexpr absl::Duration kClockIsSet = absl::Seconds(1);

// Each epoch has one node with group rank 0, and tells it so once.
bool BeginsEpoch(const Outbox::Item& item) {
  const auto* event = std::get_if<DaemonEvent>(&item.what);
  if (event == nullptr) return false;
  const auto* assignment = std::get_if<Assignment>(&event->body);
  return assignment != nullptr && assignment->group_rank == 0;
}

}  // namespace

absl::Status Daemon::Stopping() const {
  return absl::UnavailableError(absl::StrCat(
      "the rendezvous daemon is stopping",
      served_by_.empty() ? "" : absl::StrCat(": it is part of ", served_by_, ", which ends")));
}

absl::Status Daemon::CheckRun(const std::string& job_id) const {
  if (only_run_.empty() || job_id == only_run_) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("this daemon is that of run \"", only_run_,
                                                    "\" alone, and not of run \"", job_id, "\""));
}

Daemon::Daemon(Clock* clock, bool quiet, std::optional<Journal::Opened> memory,
               absl::Time (*wall_now)())
    : clock_(clock),
      wall_now_(wall_now),
      quiet_(quiet),
      journal_(memory.has_value() ? std::move(memory->journal) : nullptr),
      tenure_(memory.has_value() ? std::move(memory->tenure) : nullptr) {
  if (journal_ != nullptr) {
    MutexLock lock(&mutex_);
    table_.StartRecording();
    table_.set_survives_restart(true);
    if (tenure_ != nullptr) table_.set_term(tenure_->term());
    for (const JobRecord& job : memory->jobs) {
      Restore(job, journal_->incidents()->Read(job.founder.job_id));
    }
  }
}

void Daemon::FollowWallClock() {
  const absl::Duration offset = wall_now_() - absl::UnixEpoch() - clock_->Now().since_epoch();
  if (absl::AbsDuration(offset - wall_offset_) <= kClockIsSet) return;
  wall_offset_ = offset;
  table_.set_wall_offset(offset);
}

absl::Status Daemon::Start() {
  if (journal_ != nullptr) {
    CONVENE_ASSIGN_OR_RETURN(recorder_,
                             Thread::Start("rdzv-journal", [this] { RecordUntilShutdown(); }));
  }
  CONVENE_ASSIGN_OR_RETURN(ticker_, Thread::Start("rdzv-tick", [this] { TickUntilShutdown(); }));
  return absl::OkStatus();
}

void Daemon::BeginServing() {
  MutexLock lock(&mutex_);
  table_.RenewAway(clock_->Now());
  if (NextWakeUp() < sleeps_until_) woken_.Signal();
}

MemberId Daemon::Open(std::shared_ptr<StreamSink> sink) {
  const MonotonicTime now = clock_->Now();
  MemberId id;
  {
    MutexLock lock(&mutex_);
    id = last_id_ = last_id_.Next();
    if (!shutdown_) {
      sinks_.emplace(id.value(), std::move(sink));
      before_hello_.emplace(id, now + kHelloTimeout);
      if (now + kHelloTimeout < sleeps_until_) woken_.Signal();
      return id;
    }
    sink->Queue(Stopping());
  }
  sink->Flush();
  return id;
}

void Daemon::Join(MemberId id, Incarnation incarnation, const Hello& hello) {
  const MonotonicTime now = clock_->Now();
  Aftermath aftermath;
  {
    MutexLock lock(&mutex_);
    if (sinks_.count(id.value()) == 0) return;
    FollowWallClock();
    Outbox outbox;
    absl::Status joined = before_hello_.erase(id) == 0
                              ? absl::InvalidArgumentError("a second Hello on one stream")
                              : CheckRun(hello.job_id);
    if (joined.ok()) joined = table_.Join(now, id, incarnation, hello, &outbox);
    if (!joined.ok()) {
      outbox.log.push_back(
          {absl::StrCat("job ", hello.job_id, ": refused ", hello.host, ": ", joined.message())});
      outbox.End(id, std::move(joined));
      table_.Disconnect(now, id, &outbox);
      ++counters_.joins_refused;
    } else {
      ++counters_.joins;
    }
    aftermath = Deliver(std::move(outbox));
    CountDecision(now, aftermath);
    if (!log_watches_.empty()) AskForLogs(id, hello.job_id, &aftermath);
  }
  Finish(aftermath);
}

void Daemon::Receive(MemberId id, Incarnation incarnation, Epoch epoch, const AgentEvent& event) {
  const MonotonicTime now = clock_->Now();
  Aftermath aftermath;
  {
    MutexLock lock(&mutex_);
    if (shutdown_) return;
    FollowWallClock();
    Outbox outbox;
    if (before_hello_.erase(id) > 0) {
      outbox.End(id, absl::InvalidArgumentError("the first message of a stream must be Hello"));
    } else {
      table_.Receive(now, id, incarnation, epoch, event, &outbox);
    }
    aftermath = Deliver(std::move(outbox));
    if (std::holds_alternative<Heartbeat>(event)) {
      ++counters_.heartbeats;  // its answer decides nothing
    } else {
      CountDecision(now, aftermath);
    }
  }
  Finish(aftermath);
}

void Daemon::Disconnect(MemberId id) {
  const MonotonicTime now = clock_->Now();
  Aftermath aftermath;
  {
    MutexLock lock(&mutex_);
    before_hello_.erase(id);
    if (sinks_.erase(id.value()) > 0) heap_trim_.StreamEnded(now);
    held_.erase(id);
    if (shutdown_) return;
    FollowWallClock();
    Outbox outbox;
    table_.Disconnect(now, id, &outbox);
    aftermath = Deliver(std::move(outbox));
  }
  Finish(aftermath);
}

bool Daemon::MaySpeak() const { return tenure_ == nullptr || tenure_->Covers(clock_->Now()); }

absl::StatusOr<std::vector<JobView>> Daemon::Views(const std::string& job_id) {
  const MonotonicTime now = clock_->Now();
  MutexLock lock(&mutex_);
  // After its tenure a daemon may know old facts.
  if (!MaySpeak()) {
    return absl::AbortedError(
        "this daemon leads no more: another one knows how the runs are. Name all daemons: "
        "--endpoint A,B,C");
  }
  return table_.Views(now, job_id);
}

std::vector<ServedJob> Daemon::ServedJobs() {
  MutexLock lock(&mutex_);
  return table_.ServedJobs();
}

void Daemon::EndSoon(Incarnation host) {
  MutexLock lock(&mutex_);
  table_.EndSoon(host);
}

DaemonCounters Daemon::Counters() {
  MutexLock lock(&mutex_);
  DaemonCounters counters = counters_;
  counters.streams_open = static_cast<int64_t>(sinks_.size());
  return counters;
}

void Daemon::CountDecision(MonotonicTime arrived, const Aftermath& aftermath) {
  if (!aftermath.sinks.empty()) counters_.decisions.Observe(clock_->Now() - arrived);
}

Daemon::Aftermath Daemon::Deliver(Outbox outbox) {
  Aftermath aftermath;
  for (Outbox::Item& item : outbox.items) {
    if (item.after_change <= written_change_) {
      Queue(std::move(item), &aftermath);
    } else if (sinks_.count(item.to.value()) > 0) {
      held_[item.to].push_back(std::move(item));
    }
  }
  // A daemon that woke up after its tenure decides for nobody.
  if (MaySpeak()) aftermath.log = std::move(outbox.log);
  if (NextWakeUp() < sleeps_until_) woken_.Signal();
  if (table_.has_changes()) changed_.Signal();
  if (!log_watches_.empty()) EndWatches(&aftermath);
  return aftermath;
}

void Daemon::Queue(Outbox::Item item, Aftermath* aftermath) {
  const auto found = sinks_.find(item.to.value());
  if (found == sinks_.end()) return;
  if (!MaySpeak()) return;
  const bool is_end = std::holds_alternative<absl::Status>(item.what);
  counters_.epochs += BeginsEpoch(item) ? 1 : 0;
  found->second->Queue(std::move(item.what));
  auto& touched = aftermath->sinks;
  if (touched.empty() || touched.back() != found->second) touched.push_back(found->second);
  if (is_end) {
    sinks_.erase(found);
    heap_trim_.StreamEnded(clock_->Now());
  }
}

Daemon::Aftermath Daemon::Release() {
  Aftermath aftermath;
  for (auto stream = held_.begin(); stream != held_.end();) {
    std::deque<Outbox::Item>& items = stream->second;
    for (; !items.empty() && items.front().after_change <= written_change_; items.pop_front()) {
      Queue(std::move(items.front()), &aftermath);
    }
    stream = items.empty() ? held_.erase(stream) : std::next(stream);
  }
  return aftermath;
}

void Daemon::Finish(const Aftermath& aftermath) const {
  for (const std::shared_ptr<StreamSink>& sink : aftermath.sinks) sink->Flush();
  for (const auto& [watch, ended] : aftermath.ended_watches) on_run_ended_(watch, ended);
  for (const Outbox::LogLine& line : aftermath.log) {
    const bool is_detail = line.is_detail || (quiet_ && !line.is_untold);
    // A Hello that is refused for its names is told with them.
    spdlog::log(is_detail ? spdlog::level::debug : spdlog::level::info, "rendezvous: {}",
                Printable(line.text));
  }
}

MonotonicTime Daemon::NextWakeUp() {
  MonotonicTime next = std::min(table_.wake_at(), heap_trim_.due_at());
  // Identities rise with time, so the first is the oldest.
  if (!before_hello_.empty()) next = std::min(next, before_hello_.begin()->second);
  return next;
}

void Daemon::EndSilentStreams(MonotonicTime now, Outbox* outbox) {
  while (!before_hello_.empty() && before_hello_.begin()->second <= now) {
    outbox->End(before_hello_.begin()->first,
                absl::DeadlineExceededError(
                    absl::StrCat("no Hello within ", absl::FormatDuration(kHelloTimeout))));
    before_hello_.erase(before_hello_.begin());
  }
}

void Daemon::TickUntilShutdown() {
  for (;;) {
    Aftermath aftermath;
    bool trims_heap = false;
    {
      MutexLock lock(&mutex_);
      if (shutdown_) return;
      const MonotonicTime now = clock_->Now();
      const MonotonicTime next = NextWakeUp();
      if (next > now) {
        sleeps_until_ = next;
        woken_.WaitFor(&mutex_, std::min(next - now, kLongestSleep));
        sleeps_until_ = MonotonicTime::FromEpoch(absl::ZeroDuration());  // awake: needs no signal
        continue;
      }
      FollowWallClock();
      Outbox outbox;
      EndSilentStreams(now, &outbox);
      if (table_.wake_at() <= now) table_.Tick(now, &outbox);
      aftermath = Deliver(std::move(outbox));
      trims_heap = heap_trim_.Take(now);
    }
    Finish(aftermath);
    if (trims_heap) malloc_trim(0);
  }
}

void Daemon::Shutdown() {
  Aftermath aftermath;
  {
    MutexLock lock(&mutex_);
    shutdown_ = true;
    if (journal_ == nullptr) HandOverJobs(&aftermath);
    for (const auto& [id, sink] : sinks_) {
      sink->Queue(Stopping());
      aftermath.sinks.push_back(sink);
    }
    sinks_.clear();
    held_.clear();
    before_hello_.clear();
    woken_.Signal();
    changed_.Signal();
  }
  Finish(aftermath);
  ticker_.Join();
  recorder_.Join();
}

}  // namespace convene::rendezvous

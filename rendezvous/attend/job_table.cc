#include "rendezvous/attend/job_table.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tools/base/status_macros.h"

namespace convene::rendezvous {

absl::Status JobTable::Join(MonotonicTime now, MemberId id, Incarnation incarnation,
                            const Hello& hello, Outbox* outbox) {
  CONVENE_RETURN_IF_ERROR(ValidateHello(hello));
  if (const Entry* finished = FinishedJobOf(hello)) {
    const size_t first_new = outbox->items.size();
    finished->job.SendAway(id, outbox);
    for (size_t i = first_new; i < outbox->items.size(); ++i) {
      outbox->items[i].after_change = finished->last_change;
    }
    return absl::OkStatus();
  }
  CONVENE_ASSIGN_OR_RETURN(Entry * entry, JobFor(now, hello));
  const size_t first_new = outbox->items.size();
  const absl::Status joined = entry->job.Join(now, id, incarnation, hello, outbox);
  if (joined.ok()) {
    members_[id.value()] = {entry, incarnation, hello.publishes_logs};
    NoteLogDirectory(hello, entry);
  }
  Settle(*entry, outbox, first_new);
  return joined;
}

void JobTable::Restore(MonotonicTime now, const JobRecord& record) {
  if (jobs_.size() >= kMostJobs) MakeRoom();
  Entry entry{Job(now, record, last_away_id_.Next())};
  last_away_id_ = MemberId(last_away_id_.value() + static_cast<int64_t>(record.members.size()));
  entry.job.set_survives_restart(survives_restart_);
  entry.job.set_term(term_);
  entry.job.chronicle().set_wall_offset(wall_offset_);
  entry.mark = MarkOf(entry.job.state());
  Outbox nothing;
  Settle(jobs_.insert_or_assign(record.founder.job_id, std::move(entry)).first->second, &nothing,
         0);
}

void JobTable::RenewAway(MonotonicTime now) {
  Outbox nothing;
  for (auto& [id, entry] : jobs_) {
    entry.job.RenewAway(now);
    Settle(entry, &nothing, 0);
  }
}

void JobTable::set_survives_restart(bool survives_restart) {
  survives_restart_ = survives_restart;
  for (auto& [id, entry] : jobs_) entry.job.set_survives_restart(survives_restart);
}

void JobTable::EndSoon(Incarnation host) {
  ends_with_ = host;
  for (auto& [id, entry] : jobs_) entry.job.EndSoon(host);
}

void JobTable::set_wall_offset(absl::Duration wall_offset) {
  wall_offset_ = wall_offset;
  for (auto& [id, entry] : jobs_) entry.job.chronicle().set_wall_offset(wall_offset);
}

RecordChanges JobTable::TakeChanges(MonotonicTime now) {
  RecordChanges changes;
  for (const std::string& id : changed_) {
    const auto found = jobs_.find(id);
    if (found != jobs_.end() && IsWorthRecording(found->second.job.state())) {
      changes.jobs.push_back(found->second.job.Record(now));
    } else {
      changes.forgotten.push_back(id);
    }
  }
  changed_.clear();
  return changes;
}

IncidentChanges JobTable::TakeIncidents() {
  IncidentChanges changes = {.replaced = std::exchange(replaced_, {})};
  for (auto& [id, entry] : jobs_) {
    for (IncidentView& incident : entry.job.chronicle().TakeChanged()) {
      changes.incidents.emplace_back(id, std::move(incident));
    }
  }
  return changes;
}

void JobTable::RestoreIncident(const std::string& job_id, const IncidentView& incident) {
  const auto found = jobs_.find(job_id);
  if (found != jobs_.end()) found->second.job.chronicle().Restore(incident);
}

void JobTable::MissIncidents(const JobRecord& record) {
  const auto found = jobs_.find(record.founder.job_id);
  if (found == jobs_.end()) return;
  found->second.job.chronicle().NumberAbove(record.epoch.value() - record.floor.value());
}

const JobTable::Entry* JobTable::FinishedJobOf(const Hello& hello) const {
  const auto found = jobs_.find(hello.job_id);
  if (found == jobs_.end() || hello.last_epoch == Epoch()) return nullptr;
  const Job& job = found->second.job;
  const Outcome outcome = job.state().outcome();
  const bool is_final = outcome == Outcome::kSucceeded || outcome == Outcome::kFailed;
  // An agent of a later epoch is of a later job, which this daemon has forgotten.
  const bool is_its_job = hello.last_epoch <= job.state().highest_epoch();
  return job.closed() && is_final && is_its_job ? &found->second : nullptr;
}

absl::StatusOr<JobTable::Entry*> JobTable::JobFor(MonotonicTime now, const Hello& hello) {
  Epoch floor;
  const auto found = jobs_.find(hello.job_id);
  if (found != jobs_.end()) {
    const Job& job = found->second.job;
    const bool is_over =
        job.closed() || (job.state().IsDeserted(now) && !CheckAgreement(job.policy(), hello).ok());
    if (!is_over) return &found->second;
    floor = job.state().highest_epoch();
    if (is_recording_) replaced_.insert(hello.job_id);
    jobs_.erase(found);
  }
  if (jobs_.size() >= kMostJobs && !MakeRoom()) {
    return absl::ResourceExhaustedError(absl::StrCat("this daemon already serves ", kMostJobs,
                                                     " jobs; start another for this one"));
  }
  Entry& entry = jobs_.emplace(hello.job_id, Entry{Job(now, hello, floor)}).first->second;
  if (ends_with_.has_value()) entry.job.EndSoon(*ends_with_);
  entry.job.set_survives_restart(survives_restart_);
  entry.job.set_term(term_);
  entry.job.chronicle().set_wall_offset(wall_offset_);
  return &entry;
}

bool JobTable::MakeRoom() {
  auto oldest = jobs_.end();
  for (auto entry = jobs_.begin(); entry != jobs_.end(); ++entry) {
    const Job& job = entry->second.job;
    if (!job.closed()) continue;
    if (oldest == jobs_.end() || job.state().closed_at() < oldest->second.job.state().closed_at()) {
      oldest = entry;
    }
  }
  if (oldest == jobs_.end()) return false;
  Forget(oldest);
  return true;
}

std::map<std::string, JobTable::Entry>::iterator JobTable::Forget(
    std::map<std::string, Entry>::iterator entry) {
  if (is_recording_ && IsWorthRecording(entry->second.job.state())) changed_.insert(entry->first);
  return jobs_.erase(entry);
}

void JobTable::NoteChange(Entry& entry) {
  const JobState& state = entry.job.state();
  const RecordMark mark = MarkOf(state);
  const bool is_decided = !(mark.decided == entry.mark.decided);
  const bool is_learnt = !(mark.learnt == entry.mark.learnt);
  entry.mark = mark;
  if (!IsWorthRecording(state) || (!is_decided && !is_learnt)) return;
  changed_.insert(entry.job.id());
  if (is_decided) entry.last_change = ++last_change_;
}

void JobTable::Settle(Entry& entry, Outbox* outbox, size_t first_new) {
  if (is_recording_) NoteChange(entry);
  const Job& job = entry.job;
  for (size_t i = first_new; i < outbox->items.size(); ++i) {
    Outbox::Item& item = outbox->items[i];
    item.after_change = entry.last_change;
    if (std::holds_alternative<absl::Status>(item.what)) members_.erase(item.to.value());
  }
  wake_at_ =
      std::min(wake_at_, job.closed() ? job.state().closed_at() + kRemembered : job.wake_at());
}

void JobTable::Receive(MonotonicTime now, MemberId id, Incarnation incarnation, Epoch epoch,
                       const AgentEvent& event, Outbox* outbox) {
  const auto found = members_.find(id.value());
  if (found == members_.end()) return;
  const Membership membership = found->second;
  if (incarnation != membership.incarnation) {
    outbox->End(id, absl::AbortedError(absl::StrCat("this stream began as incarnation ",
                                                    membership.incarnation.value(),
                                                    " and now speaks as ", incarnation.value())));
    Disconnect(now, id, outbox);
    return;
  }
  const size_t first_new = outbox->items.size();
  membership.entry->job.Hear(now, outbox);
  membership.entry->job.Receive(now, id, epoch, event, outbox);
  Settle(*membership.entry, outbox, first_new);
  if (std::holds_alternative<Heartbeat>(event)) outbox->Say(id, DaemonEvent{epoch, Heard{}});
}

void JobTable::Disconnect(MonotonicTime now, MemberId id, Outbox* outbox) {
  const auto found = members_.find(id.value());
  if (found == members_.end()) return;
  Entry& entry = *found->second.entry;
  members_.erase(found);
  const size_t first_new = outbox->items.size();
  entry.job.Hear(now, outbox);
  entry.job.Disconnect(now, id, outbox);
  Settle(entry, outbox, first_new);
}

void JobTable::Tick(MonotonicTime now, Outbox* outbox) {
  wake_at_ = MonotonicTime::InfiniteFuture();
  for (auto entry = jobs_.begin(); entry != jobs_.end();) {
    Job& job = entry->second.job;
    if (job.closed() && job.state().closed_at() + kRemembered <= now) {
      entry = Forget(entry);
      continue;
    }
    const size_t first_new = outbox->items.size();
    if (job.wake_at() <= now) job.Tick(now, outbox);
    Settle(entry->second, outbox, first_new);
    ++entry;
  }
}

std::vector<ServedJob> JobTable::ServedJobs() const {
  std::set<const Entry*> with_successor;
  for (const auto& [id, membership] : members_) {
    if (MaySucceed(MemberId(id), membership)) with_successor.insert(membership.entry);
  }
  std::vector<ServedJob> served;
  for (const auto& [id, entry] : jobs_) {
    const JobState& state = entry.job.state();
    if (entry.job.closed() || state.nodes().empty()) continue;
    served.push_back(
        {id, state.epoch(), state.running_count() > 0, with_successor.count(&entry) > 0});
  }
  return served;
}

bool JobTable::MaySucceed(MemberId id, const Membership& membership) {
  const Node* node = membership.entry->job.state().Find(id);
  return node != nullptr && membership.entry->job.state().MayHostNext(*node);
}

std::vector<JobTable::Succession> JobTable::HandOver(MonotonicTime now) const {
  std::map<const Entry*, Succession> by_job;
  for (const auto& [number, membership] : members_) {
    const MemberId id(number);
    Succession& succession = by_job[membership.entry];
    (MaySucceed(id, membership) ? succession.successors : succession.others).push_back(id);
  }
  std::vector<Succession> successions;
  for (const auto& [id, entry] : jobs_) {
    const auto found = by_job.find(&entry);
    if (found == by_job.end() || found->second.successors.empty()) continue;
    HandedOverJob& left = found->second.job;
    left.record = entry.job.Record(now);
    left.incidents = entry.job.View(now).incidents;
    std::reverse(left.incidents.begin(), left.incidents.end());
    successions.push_back(std::move(found->second));
  }
  return successions;
}

const Job* JobTable::Find(const std::string& job_id) const {
  const auto found = jobs_.find(job_id);
  return found == jobs_.end() ? nullptr : &found->second.job;
}

absl::StatusOr<std::vector<JobView>> JobTable::Views(MonotonicTime now,
                                                     const std::string& job_id) const {
  std::vector<JobView> views;
  for (const auto& [id, entry] : jobs_) {
    if (!job_id.empty() && id != job_id) continue;
    views.push_back(entry.job.View(now, /*with_news=*/!job_id.empty()));
  }
  if (!job_id.empty() && views.empty()) {
    return absl::NotFoundError(
        absl::StrCat("this daemon knows no job ", job_id, "; `convene status` lists its jobs"));
  }
  return views;
}

}  // namespace convene::rendezvous

#include "rendezvous/server/job_table.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tools/base/status_macros.h"

namespace convene::rendezvous {

absl::Status JobTable::Join(MonotonicTime now, MemberId id, Incarnation incarnation,
                            const Hello& hello, Outbox* outbox) {
  CONVENE_RETURN_IF_ERROR(ValidateHello(hello));
  if (const Job* finished = FinishedJobOf(hello)) {
    finished->SendAway(id, outbox);
    return absl::OkStatus();
  }
  CONVENE_ASSIGN_OR_RETURN(Job * job, JobFor(now, hello));
  const size_t first_new = outbox->items.size();
  const absl::Status joined = job->Join(now, id, incarnation, hello, outbox);
  if (joined.ok()) members_[id.value()] = {job, incarnation};
  Settle(*job, *outbox, first_new);
  return joined;
}

const Job* JobTable::FinishedJobOf(const Hello& hello) const {
  const auto found = jobs_.find(hello.job_id);
  if (found == jobs_.end() || hello.last_epoch == Epoch()) return nullptr;
  const Job& job = found->second;
  const Outcome outcome = job.state().outcome();
  const bool is_final = outcome == Outcome::kSucceeded || outcome == Outcome::kFailed;
  return job.closed() && is_final ? &job : nullptr;
}

absl::StatusOr<Job*> JobTable::JobFor(MonotonicTime now, const Hello& hello) {
  Epoch floor;
  const auto found = jobs_.find(hello.job_id);
  if (found != jobs_.end()) {
    Job& job = found->second;
    const bool is_over =
        job.closed() || (job.state().nodes().empty() && !CheckAgreement(job.policy(), hello).ok());
    if (!is_over) return &job;
    floor = job.state().highest_epoch();
    jobs_.erase(found);
  }
  if (jobs_.size() >= kMostJobs && !MakeRoom()) {
    return absl::ResourceExhaustedError(absl::StrCat("this daemon already serves ", kMostJobs,
                                                     " jobs; start another for this one"));
  }
  return &jobs_.emplace(hello.job_id, Job(now, hello, floor)).first->second;
}

bool JobTable::MakeRoom() {
  auto oldest = jobs_.end();
  for (auto entry = jobs_.begin(); entry != jobs_.end(); ++entry) {
    if (!entry->second.closed()) continue;
    if (oldest == jobs_.end() ||
        entry->second.state().closed_at() < oldest->second.state().closed_at()) {
      oldest = entry;
    }
  }
  if (oldest == jobs_.end()) return false;
  jobs_.erase(oldest);
  return true;
}

void JobTable::Settle(const Job& job, const Outbox& outbox, size_t first_new) {
  for (size_t i = first_new; i < outbox.items.size(); ++i) {
    const Outbox::Item& item = outbox.items[i];
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
  membership.job->Receive(now, id, epoch, event, outbox);
  Settle(*membership.job, *outbox, first_new);
}

void JobTable::Disconnect(MonotonicTime now, MemberId id, Outbox* outbox) {
  const auto found = members_.find(id.value());
  if (found == members_.end()) return;
  Job* const job = found->second.job;
  members_.erase(found);
  const size_t first_new = outbox->items.size();
  job->Disconnect(now, id, outbox);
  Settle(*job, *outbox, first_new);
}

void JobTable::Tick(MonotonicTime now, Outbox* outbox) {
  wake_at_ = MonotonicTime::InfiniteFuture();
  for (auto entry = jobs_.begin(); entry != jobs_.end();) {
    Job& job = entry->second;
    if (job.closed() && job.state().closed_at() + kRemembered <= now) {
      entry = jobs_.erase(entry);
      continue;
    }
    const size_t first_new = outbox->items.size();
    if (job.wake_at() <= now) job.Tick(now, outbox);
    Settle(job, *outbox, first_new);
    ++entry;
  }
}

absl::StatusOr<std::vector<JobView>> JobTable::Views(const std::string& job_id) const {
  std::vector<JobView> views;
  for (const auto& [id, job] : jobs_) {
    if (job_id.empty() || id == job_id) views.push_back(job.View());
  }
  if (!job_id.empty() && views.empty()) {
    return absl::NotFoundError(absl::StrCat("this daemon knows no job ", job_id,
                                            "; ask without a job id for the list of its jobs"));
  }
  return views;
}

}  // namespace convene::rendezvous

// All jobs of a daemon and who is in which. No gRPC, no lock, no thread, no clock: the daemon
// (daemon.h) brings those.
#pragma once

#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "rendezvous/quorum/job.h"
#include "tools/base/clock.h"

namespace convene::rendezvous {

// A closed job's id is free: the next Hello begins a new job under it, whose epochs are above the
// old ones. Not so an agent that was in an epoch (its Hello has a last_epoch) and comes back to a
// job that succeeded or failed without it: it is told the outcome, and does not do the work again
// by itself. The id is also free when no node is in the job and the Hello contradicts it. Not
// thread-safe.
class JobTable {
 public:
  static constexpr size_t kMostJobs = 1024;  // closed ones included
  static constexpr absl::Duration kRemembered =
      absl::Minutes(10);  // how long Status knows a closed job

  // `id` is new. InvalidArgument when the hello is senseless or contradicts its job;
  // ResourceExhausted when there are too many jobs or nodes. The caller ends the stream with it.
  absl::Status Join(MonotonicTime now, MemberId id, Incarnation incarnation, const Hello& hello,
                    Outbox* outbox);
  // Ignored when `id` is in no job (any more). Another incarnation than its Hello's ends its stream
  // with Aborted.
  void Receive(MonotonicTime now, MemberId id, Incarnation incarnation, Epoch epoch,
               const AgentEvent& event, Outbox* outbox);
  void Disconnect(MonotonicTime now, MemberId id, Outbox* outbox);
  void Tick(MonotonicTime now, Outbox* outbox);
  // Nothing happens by itself before this.
  MonotonicTime wake_at() const { return wake_at_; }

  // By job id. `job_id` "": all. NotFound names the id.
  absl::StatusOr<std::vector<JobView>> Views(const std::string& job_id) const;

 private:
  struct Membership {
    Job* job;
    Incarnation incarnation;
  };
  // The job that is over for who says this hello, too; nullptr when there is none.
  const Job* FinishedJobOf(const Hello& hello) const;
  absl::StatusOr<Job*> JobFor(MonotonicTime now, const Hello& hello);
  bool MakeRoom();
  // After a call to `job` that appended to `outbox` from `first_new` on.
  void Settle(const Job& job, const Outbox& outbox, size_t first_new);

  std::map<std::string, Job> jobs_;
  std::unordered_map<int64_t, Membership> members_;  // by MemberId
  MonotonicTime wake_at_ = MonotonicTime::InfiniteFuture();
};

}  // namespace convene::rendezvous

// PURE. Plays the plans of all ranks by the rules of an executor, and referees.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "worker_runtime/schedule/lower.h"
#include "worker_runtime/schedule/plan.h"

namespace convene::worker {

enum class SendRule {
  kBuffered,         // a send is done at once (Gloo)
  kWaitsForReceive,  // it is done once its receive is posted, messages of one pair one by one
                     // (NCCL)
};

// Every rank does its instructions in order; which rank goes on next is drawn from `seed`.
//
// FailedPrecondition, with the rank and the instruction: a compute whose input, saved activations
// or deferred gradients do not lie in their slots; a slot that is written while what lies in it is
// still needed; a message that meets the receive of another; a message that nobody receives; a
// compute of `schedule` that is not done; and a deadlock.
absl::Status Play(const Schedule& schedule, const std::vector<RankPlan>& plans, SendRule rule,
                  uint64_t seed);

}  // namespace convene::worker

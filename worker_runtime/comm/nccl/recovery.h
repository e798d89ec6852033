// PURE. How the ranks that are left go on after some were lost, or new ones came.
#pragma once

#include <string>
#include <vector>

#include "absl/types/span.h"
#include "worker_runtime/comm/nccl/features.h"

namespace convene::worker {

enum class NcclHealth {
  kWell,         // no error, and nothing queued is still running
  kEnded,        // the session has its error: a peer, a deadline, an abort
  kContextLost,  // CUDA's error: the GPU's context does not come back within the process
};

// To one group; the same on all of its ranks.
struct NcclChange {
  int size = 1;                           // of the group until now
  std::vector<int> lost;                  // places in the group
  std::vector<int> joined;                // places in the new group
  NcclHealth health = NcclHealth::kWell;  // the worst of any rank that is left
};

enum class NcclRecovery {
  kKeep,              // nothing has changed
  kShrink,            // revoke if it has ended, then ncclCommShrink; abort the old one
  kGrow,              // ncclCommGrow; end the old one
  kNewCommunicators,  // abort, and make new ones within the process
  kNewProcess,        // abort, end, and let the agent start the rank again
};

struct NcclRecoveryDecision {
  NcclRecovery recovery = NcclRecovery::kKeep;
  std::string why;  // "NCCL 2.28.9 cannot grow"
};

// Two thoughts stand behind it. Shrinking a group that has ended wants a revoke first:
// NCCL_SHRINK_ABORT alone waits for one communicator's kernels while those of the rank's others,
// which nobody has stopped, may stand in the same stream before them. And what wants several steps
// (lost ones and new ones, or new ones after a failure) is one step with new communicators.
NcclRecoveryDecision DecideNcclRecovery(const NcclFeatures& features, const NcclChange& change);

// `members` without the ranks at the places `lost`: the ranks behind them move up, as NCCL numbers
// them.
std::vector<int> Survivors(const std::vector<int>& members, absl::Span<const int> lost);

}  // namespace convene::worker

// For the emulated GPU (worker_runtime/device/emulated), which has no cuDNN: nothing is supported,
// so our own kernels do all attention, and nothing calls Forward and Backward.
#include "tools/base/check.h"
#include "worker_runtime/ops/cuda/attention/attention_plans.h"

namespace convene::worker::cuda {

struct AttentionPlans::Plan {};

AttentionPlans::AttentionPlans(Queue& queue) : queue_(queue) {}
AttentionPlans::~AttentionPlans() = default;

absl::Status AttentionPlans::Support(const AttentionShape& /*shape*/, int /*document_count*/,
                                     AttentionPass /*pass*/) {
  return absl::UnimplementedError("the emulated GPU has no cuDNN");
}

size_t AttentionPlans::WorkspaceBytes(const AttentionShape& /*shape*/, int /*document_count*/,
                                      AttentionPass /*pass*/) {
  CONVENE_CHECK(false);
}

}  // namespace convene::worker::cuda

// For the emulated GPU (worker_runtime/device/emulated) without cuDNN: nothing is supported,
// so our own kernels do all attention, and nothing calls Forward and Backward.
#include "tools/base/check.h"
#include "worker_runtime/ops/cuda/attention/attention_plans.h"

namespace convene::worker::cuda {

struct AttentionPlans::Plan {};

AttentionPlans::AttentionPlans(Queue& queue) : queue_(queue) {}
AttentionPlans::~AttentionPlans() = default;

absl::Status AttentionPlans::Support(const AttentionShape& /*shape*/,
                                     const HeadStrides& /*strides*/, int /*document_count*/,
                                     AttentionPass /*pass*/) {
  return absl::UnimplementedError("the emulated GPU has no cuDNN");
}

size_t AttentionPlans::WorkspaceBytes(const AttentionShape& /*shape*/,
                                      const HeadStrides& /*strides*/, int /*document_count*/,
                                      AttentionPass /*pass*/) {
  CONVENE_CHECK(false);
}

void AttentionPlans::Forward(const AttentionShape& /*shape*/, const Documents& /*documents*/,
                             const QueriesKeysValues<const BFloat16>& /*qkv*/, BFloat16* /*out*/,
                             float* /*log_sum_exp*/, const Workspace& /*workspace*/) {
  CONVENE_CHECK(false);
}

void AttentionPlans::Backward(const AttentionShape& /*shape*/, const Documents& /*documents*/,
                              const QueriesKeysValues<const BFloat16>& /*qkv*/,
                              const BFloat16* /*out*/, const float* /*log_sum_exp*/,
                              const BFloat16* /*dout*/,
                              const QueriesKeysValues<BFloat16>& /*gradients*/,
                              const Workspace& /*workspace*/) {
  CONVENE_CHECK(false);
}

}  // namespace convene::worker::cuda

#include "worker_runtime/ops/attention.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <type_traits>

#include "tools/base/check.h"
#include "worker_runtime/device/cuda/queue.h"
#include "worker_runtime/device/dtype.h"
#include "worker_runtime/device/stream.h"
#include "worker_runtime/device/workspace.h"
#include "worker_runtime/ops/cuda/attention/attention_plans.h"
#include "worker_runtime/ops/cuda/attention/flash_attention.h"
#include "worker_runtime/ops/cuda/attention/workspace_bytes.h"
#include "worker_runtime/ops/cuda/cuda_ops.h"
#include "worker_runtime/ops/instantiate.h"

namespace convene::worker::cuda {
namespace {

template <typename T>
constexpr bool kCudnnKnows = std::is_same_v<T, BFloat16>;

bool IsEmpty(const AttentionShape& shape) {
  return shape.batch == 0 || shape.sequence_length == 0 || shape.heads == 0;
}

// Where the shape is no part, the heads are one tensor.
template <typename T>
void CheckArguments(const AttentionShape& shape, const Documents& documents,
                    const AttentionPositions& positions, const QueriesKeysValues<T>& heads) {
  CONVENE_CHECK(shape.packed == (documents.begin != nullptr));
  if (shape.is_part()) return;
  CONVENE_CHECK(positions.queries == nullptr && positions.keys == nullptr);
  CONVENE_CHECK(heads == Fused(shape, heads.queries.data));
}

// cuDNN asks for tensors at multiples of 16 bytes.
bool AreAligned(std::initializer_list<const void*> pointers) {
  constexpr uintptr_t kBytes = 16;
  return std::all_of(pointers.begin(), pointers.end(), [](const void* pointer) {
    return reinterpret_cast<uintptr_t>(pointer) % kBytes == 0;
  });
}

}  // namespace

template <typename T>
size_t AttentionWorkspaceBytes(const AttentionShape& shape) {
  const bool may_be_cudnn = kCudnnKnows<T> && !shape.is_part();
  return std::max(FlashWorkspaceBytes(shape), may_be_cudnn ? CudnnWorkspaceBytes(shape) : 0);
}

template <typename T>
void AttentionForward(const AttentionShape& shape, const Documents& documents,
                      const AttentionPositions& positions, const QueriesKeysValues<const T>& qkv,
                      T* out, float* log_sum_exp, const Workspace& workspace, Stream& stream) {
  CheckArguments(shape, documents, positions, qkv);
  if (IsEmpty(shape)) return;
  Queue& queue = stream.queue();
  if constexpr (kCudnnKnows<T>) {
    auto& plans = queue.plans<AttentionPlans>();
    const T* const fused = qkv.queries.data;
    if (!shape.is_part() && AreAligned({fused, out, log_sum_exp}) &&
        plans.Support(shape, documents.count, AttentionPass::kForward).ok()) {
      plans.Forward(shape, documents, fused, out, log_sum_exp, workspace);
      return;
    }
  }
  FlashForward(shape, documents.begin, positions, qkv, out, log_sum_exp, queue);
}

template <typename T, typename Gradient>
void AttentionBackward(const AttentionShape& shape, const Documents& documents,
                       const AttentionPositions& positions, const QueriesKeysValues<const T>& qkv,
                       const T* out, const float* log_sum_exp, const T* dout, bool adds,
                       const QueriesKeysValues<Gradient>& gradients, const Workspace& workspace,
                       Stream& stream) {
  CheckArguments(shape, documents, positions, qkv);
  CheckArguments(shape, documents, positions, gradients);
  CONVENE_CHECK(!adds || (std::is_same_v<Gradient, float>));
  if (IsEmpty(shape)) return;
  Queue& queue = stream.queue();
  if constexpr (kCudnnKnows<T> && std::is_same_v<T, Gradient>) {
    auto& plans = queue.plans<AttentionPlans>();
    const T* const fused = qkv.queries.data;
    T* const fused_gradient = gradients.queries.data;
    if (!shape.is_part() && AreAligned({fused, out, log_sum_exp, dout, fused_gradient}) &&
        plans.Support(shape, documents.count, AttentionPass::kBackward).ok()) {
      plans.Backward(shape, documents, fused, out, log_sum_exp, dout, fused_gradient, workspace);
      return;
    }
  }
  FlashBackward(shape, documents.begin, positions, qkv, out, log_sum_exp, dout, adds, gradients,
                workspace.As<void>(FlashWorkspaceBytes(shape)), queue);
}

CONVENE_INSTANTIATE(AttentionWorkspaceBytes);
CONVENE_INSTANTIATE(AttentionForward);
CONVENE_INSTANTIATE_PRODUCT(AttentionBackward);

}  // namespace convene::worker::cuda

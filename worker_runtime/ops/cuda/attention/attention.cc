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
#include "worker_runtime/ops/cuda/attention/plan_key.h"
#include "worker_runtime/ops/cuda/attention/workspace_bytes.h"
#include "worker_runtime/ops/cuda/cuda_ops.h"
#include "worker_runtime/ops/instantiate.h"

namespace convene::worker::cuda {
namespace {

template <typename T>
constexpr bool kCudnnKnows = std::is_same_v<T, BFloat16>;

// cuDNN is told no positions, no windows and no caps.
bool CudnnKnows(const AttentionShape& shape) {
  return shape.window == 0 && shape.score_cap == 0 &&
         (!shape.is_part() || shape.keys_seen != KeysSeen::kByPosition);
}

// A part's gradients one behind the other (PartGradientStrides).
QueriesKeysValues<BFloat16> PartGradients(const AttentionShape& shape, BFloat16* data) {
  const HeadStrides strides = PartGradientStrides(shape);
  BFloat16* const keys = data + shape.batch * strides.query_row;
  return {{data, strides.query_row, strides.query_token},
          {keys, strides.key_row, strides.key_token},
          {keys + shape.batch * strides.key_row, strides.key_row, strides.key_token}};
}

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
  if (!kCudnnKnows<T> || !CudnnKnows(shape)) return FlashWorkspaceBytes(shape);
  return std::max(FlashWorkspaceBytes(shape),
                  (shape.is_part() ? PartGradientBytes(shape) : 0) + CudnnWorkspaceBytes(shape));
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
    if (CudnnKnows(shape) &&
        AreAligned({qkv.queries.data, qkv.keys.data, qkv.values.data, out, log_sum_exp}) &&
        plans.Support(shape, StridesOf(qkv), documents.count, AttentionPass::kForward).ok()) {
      plans.Forward(shape, documents, qkv, out, log_sum_exp, workspace);
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
  // Gradients of a whole row in place, those of a part by way of scratch: cuDNN rounds each part's
  // to bfloat16, and their sum is in float.
  constexpr bool kIsInPlace = std::is_same_v<T, Gradient>;
  if constexpr (kCudnnKnows<T>) {
    auto& plans = queue.plans<AttentionPlans>();
    const void* const place = kIsInPlace ? gradients.queries.data : workspace.data;
    if (kIsInPlace != shape.is_part() && CudnnKnows(shape) &&
        AreAligned(
            {qkv.queries.data, qkv.keys.data, qkv.values.data, out, log_sum_exp, dout, place}) &&
        plans.Support(shape, StridesOf(qkv), documents.count, AttentionPass::kBackward).ok()) {
      if constexpr (kIsInPlace) {
        plans.Backward(shape, documents, qkv, out, log_sum_exp, dout, gradients, workspace);
      } else {
        const size_t bytes = PartGradientBytes(shape);
        const auto part = PartGradients(shape, workspace.As<BFloat16>(bytes));
        plans.Backward(shape, documents, qkv, out, log_sum_exp, dout, part,
                       {static_cast<char*>(workspace.data) + bytes, workspace.bytes - bytes});
        AddPartGradients(shape, part, adds, gradients, queue);
      }
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

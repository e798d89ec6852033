#include "worker_runtime/ops/attention.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <type_traits>

#include "worker_runtime/device/cuda/queue.h"
#include "worker_runtime/device/dtype.h"
#include "worker_runtime/device/stream.h"
#include "worker_runtime/device/workspace.h"
#include "worker_runtime/ops/cuda/attention/attention_plans.h"
#include "worker_runtime/ops/cuda/attention/flash_attention.h"
#include "worker_runtime/ops/cuda/attention/workspace_bytes.h"
#include "worker_runtime/ops/cuda/cuda_ops.h"

namespace convene::worker::cuda {
namespace {

#ifdef CONVENE_WITHOUT_CUDNN  // on the emulated GPU
template <typename T>
constexpr bool kCudnnKnows = false;
#else
template <typename T>
constexpr bool kCudnnKnows = std::is_same_v<T, BFloat16>;
#endif

bool IsEmpty(const AttentionShape& shape) {
  return shape.batch == 0 || shape.sequence_length == 0 || shape.heads == 0;
}

// cuDNN asks for tensors at multiples of 16 bytes.
[[maybe_unused]] bool AreAligned(std::initializer_list<const void*> pointers) {
  constexpr uintptr_t kBytes = 16;
  return std::all_of(pointers.begin(), pointers.end(), [](const void* pointer) {
    return reinterpret_cast<uintptr_t>(pointer) % kBytes == 0;
  });
}

}  // namespace

template <typename T>
size_t AttentionWorkspaceBytes(const AttentionShape& shape) {
  return std::max(FlashWorkspaceBytes(shape), kCudnnKnows<T> ? CudnnWorkspaceBytes(shape) : 0);
}

template <typename T>
void AttentionForward(const AttentionShape& shape, const Documents& documents, const T* qkv, T* out,
                      float* log_sum_exp, const Workspace& workspace, Stream& stream) {
  if (IsEmpty(shape)) return;
  Queue& queue = stream.queue();
  if constexpr (kCudnnKnows<T>) {
    auto& plans = queue.plans<AttentionPlans>();
    if (AreAligned({qkv, out, log_sum_exp}) &&
        plans.Support(shape, documents.count, AttentionPass::kForward).ok()) {
      plans.Forward(shape, documents, qkv, out, log_sum_exp, workspace);
      return;
    }
  }
  FlashForward(shape, documents.begin, qkv, out, log_sum_exp, queue);
}

template <typename T>
void AttentionBackward(const AttentionShape& shape, const Documents& documents, const T* qkv,
                       const T* out, const float* log_sum_exp, const T* dout, T* dqkv,
                       const Workspace& workspace, Stream& stream) {
  if (IsEmpty(shape)) return;
  Queue& queue = stream.queue();
  if constexpr (kCudnnKnows<T>) {
    auto& plans = queue.plans<AttentionPlans>();
    if (AreAligned({qkv, out, log_sum_exp, dout, dqkv}) &&
        plans.Support(shape, documents.count, AttentionPass::kBackward).ok()) {
      plans.Backward(shape, documents, qkv, out, log_sum_exp, dout, dqkv, workspace);
      return;
    }
  }
  FlashBackward(shape, documents.begin, qkv, out, log_sum_exp, dout, dqkv,
                workspace.As<void>(FlashWorkspaceBytes(shape)), queue);
}

template size_t AttentionWorkspaceBytes<float>(const AttentionShape& shape);
template size_t AttentionWorkspaceBytes<BFloat16>(const AttentionShape& shape);
template void AttentionForward(const AttentionShape& shape, const Documents& documents,
                               const float* qkv, float* out, float* log_sum_exp,
                               const Workspace& workspace, Stream& stream);
template void AttentionForward(const AttentionShape& shape, const Documents& documents,
                               const BFloat16* qkv, BFloat16* out, float* log_sum_exp,
                               const Workspace& workspace, Stream& stream);
template void AttentionBackward(const AttentionShape& shape, const Documents& documents,
                                const float* qkv, const float* out, const float* log_sum_exp,
                                const float* dout, float* dqkv, const Workspace& workspace,
                                Stream& stream);
template void AttentionBackward(const AttentionShape& shape, const Documents& documents,
                                const BFloat16* qkv, const BFloat16* out, const float* log_sum_exp,
                                const BFloat16* dout, BFloat16* dqkv, const Workspace& workspace,
                                Stream& stream);

}  // namespace convene::worker::cuda

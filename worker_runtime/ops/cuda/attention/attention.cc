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
  CONVENE_CHECK(shape.packed == (documents.begin != nullptr));
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
  CONVENE_CHECK(shape.packed == (documents.begin != nullptr));
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

CONVENE_INSTANTIATE(AttentionWorkspaceBytes);
CONVENE_INSTANTIATE(AttentionForward);
CONVENE_INSTANTIATE(AttentionBackward);

}  // namespace convene::worker::cuda

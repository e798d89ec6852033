// Our own attention, for all that cuDNN does not take, and the oracle in fp32. Contracts in
// ops/attention.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "worker_runtime/device/cuda/queue.h"
#include "worker_runtime/device/dtype.h"
#include "worker_runtime/ops/attention.h"

namespace convene::worker::cuda {

// Any even head size up to this.
inline constexpr int kLargestFlashHeadSize = 256;

// Any batch, sequence length and number of heads; the same bits each time. T: float or BFloat16;
// arithmetic in float. Reports InvalidArgument to the queue for a head size that it cannot do.
// `document_begin`: Documents::begin.
template <typename T>
void FlashForward(const AttentionShape& shape, const int32_t* document_begin, const T* qkv, T* out,
                  float* log_sum_exp, Queue& queue);

// `workspace`: FlashWorkspaceBytes(shape).
template <typename T>
void FlashBackward(const AttentionShape& shape, const int32_t* document_begin, const T* qkv,
                   const T* out, const float* log_sum_exp, const T* dout, T* dqkv, void* workspace,
                   Queue& queue);

}  // namespace convene::worker::cuda

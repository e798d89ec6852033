// Our own attention, for all that cuDNN does not take, and the oracle in fp32. Contracts in
// ops/attention.h.
#pragma once

#include <cstdint>

#include "worker_runtime/device/cuda/queue.h"
#include "worker_runtime/device/dtype.h"
#include "worker_runtime/ops/attention.h"

namespace convene::worker::cuda {

// Any even head size up to this.
inline constexpr int kLargestFlashHeadSize = 256;

// Any batch, numbers of queries, keys and heads; the same bits each time. T: float or BFloat16;
// arithmetic in float. Reports InvalidArgument to the queue for a head size that it cannot do.
// `document_begin`: Documents::begin.
template <typename T>
void FlashForward(const AttentionShape& shape, const int32_t* document_begin,
                  const AttentionPositions& positions, const QueriesKeysValues<const T>& qkv,
                  T* out, float* log_sum_exp, Queue& queue);

// Gradient: T, or float. `adds`: to what `gradients` hold; only of floats. `workspace`:
// FlashWorkspaceBytes(shape).
template <typename T, typename Gradient>
void FlashBackward(const AttentionShape& shape, const int32_t* document_begin,
                   const AttentionPositions& positions, const QueriesKeysValues<const T>& qkv,
                   const T* out, const float* log_sum_exp, const T* dout, bool adds,
                   const QueriesKeysValues<Gradient>& gradients, void* workspace, Queue& queue);

// gradients = part, or += part where `adds`, of a part's queries, keys and values.
void AddPartGradients(const AttentionShape& shape, const QueriesKeysValues<BFloat16>& part,
                      bool adds, const QueriesKeysValues<float>& gradients, Queue& queue);

}  // namespace convene::worker::cuda

// Attention sinks (Xiao et al. 2023, section 3.3, a sink for each head; gpt-oss, OpenAI 2025): a
// learned logit of each head takes part in the softmax of every query, and has no value. So each
// query's attention is a share of what it is without a sink, and with the log-sum-exp of all logits
// in place of the old one the backward pass of attention (attention.h) stays as it is. T: float or
// BFloat16; arithmetic in float.
#pragma once

#include <cstddef>

#include "worker_runtime/device/dtype.h"
#include "worker_runtime/device/stream.h"
#include "worker_runtime/device/workspace.h"
#include "worker_runtime/ops/attention.h"

namespace convene::worker {

// sinks: (heads). out, log_sum_exp: as AttentionForward gives them of all keys that a query sees;
// they become those of these keys and the sink.
template <typename T>
void AttentionSinkForward(const AttentionShape& shape, const T* sinks, T* out, float* log_sum_exp,
                          Stream& stream);

// Scratch of AttentionSinkBackward.
size_t AttentionSinkWorkspaceBytes(const AttentionShape& shape, DeviceKind device);

// out, log_sum_exp: as the forward pass left them; dout: the gradient of that out. dsinks: (heads),
// minus the sum over queries of exp(sink - log_sum_exp) (dout . out): added to where `adds`, else
// overwritten. No queries: nothing is touched. The same bits for the same input.
template <typename T>
void AttentionSinkBackward(const AttentionShape& shape, const T* sinks, const T* out,
                           const float* log_sum_exp, const T* dout, bool adds, float* dsinks,
                           const Workspace& workspace, Stream& stream);

}  // namespace convene::worker

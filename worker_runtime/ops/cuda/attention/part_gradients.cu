#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "tools/base/rounding.h"
#include "worker_runtime/ops/cuda/attention/flash_attention.h"

namespace convene::worker::cuda {
namespace {

constexpr int kThreads = 256;

// Two neighbours a thread. `pairs`: of all heads of a token.
__global__ void __launch_bounds__(kThreads)
    AddHeads(int64_t count, int tokens, int pairs, TokenHeads<BFloat16> from, bool adds,
             TokenHeads<float> to) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= count) return;
  const int column = 2 * static_cast<int>(i % pairs);
  const int64_t token = i / pairs % tokens;
  const int64_t row = i / pairs / tokens;
  const auto* const source = reinterpret_cast<const __nv_bfloat162*>(
      from.data + row * from.row_stride + token * from.token_stride + column);
  float2* const sum =
      reinterpret_cast<float2*>(to.data + row * to.row_stride + token * to.token_stride + column);
  float2 value = __bfloat1622float2(*source);
  if (adds) {
    value.x += sum->x;
    value.y += sum->y;
  }
  *sum = value;
}

}  // namespace

void AddPartGradients(const AttentionShape& shape, const QueriesKeysValues<BFloat16>& part,
                      bool adds, const QueriesKeysValues<float>& gradients, Queue& queue) {
  const auto add = [&](int tokens, int heads, const TokenHeads<BFloat16>& from,
                       const TokenHeads<float>& to) {
    const int pairs = heads * shape.head_size / 2;
    const int64_t count = int64_t{shape.batch} * tokens * pairs;
    AddHeads<<<static_cast<unsigned int>(CeilDivide(count, kThreads)), kThreads, 0,
               queue.stream()>>>(count, tokens, pairs, from, adds, to);
    queue.ReportLaunch("attention_backward: sums of parts");
  };
  add(shape.sequence_length, shape.heads, part.queries, gradients.queries);
  add(shape.keys, shape.kv_heads, part.keys, gradients.keys);
  add(shape.keys, shape.kv_heads, part.values, gradients.values);
}

}  // namespace convene::worker::cuda

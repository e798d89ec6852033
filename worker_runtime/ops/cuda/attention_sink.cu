// Attention sinks. A warp takes a head of a token.
#include <cstdint>

#include "tools/base/rounding.h"
#include "worker_runtime/ops/attention_merge.h"
#include "worker_runtime/ops/cuda/cuda_ops.h"
#include "worker_runtime/ops/cuda/launch.cuh"
#include "worker_runtime/ops/cuda/vector.cuh"
#include "worker_runtime/ops/instantiate.h"

namespace convene::worker::cuda {
namespace {

constexpr int kHeadsPerBlock = 8;

// This warp's head: its row of out, which may be past the last, and the place of its log-sum-exp.
struct Place {
  int64_t row;
  int head;
  int64_t statistic;

  __device__ __forceinline__ explicit Place(const AttentionShape& shape)
      : row(int64_t{blockIdx.x} * kHeadsPerBlock + threadIdx.y),
        head(static_cast<int>(row % shape.heads)) {
    const int64_t token = row / shape.heads;
    const int64_t batch = token / shape.sequence_length;
    const bool heads_last = shape.packed && shape.keys == 0;
    statistic = heads_last ? row
                           : (batch * shape.heads + head) * shape.sequence_length +
                                 token % shape.sequence_length;
  }
};

template <typename T>
__global__ void __launch_bounds__(kWarp* kHeadsPerBlock)
    Forward(const AttentionShape shape, int64_t rows, const T* sinks, T* out, float* log_sum_exp) {
  const Place place(shape);
  if (place.row >= rows) return;
  const MergeWeights weights(log_sum_exp[place.statistic], Widen(sinks + place.head));
  T* const head = out + place.row * shape.head_size;
  for (int i = static_cast<int>(threadIdx.x); i < shape.head_size; i += kWarp) {
    Narrow(weights.kept * Widen(head + i), head + i);
  }
  __syncwarp();  // every lane has read log_sum_exp
  if (threadIdx.x == 0) log_sum_exp[place.statistic] = weights.log_sum_exp;
}

// terms: (tokens, heads): each query's part of the sinks' gradients.
template <typename T>
__global__ void __launch_bounds__(kWarp* kHeadsPerBlock)
    Terms(const AttentionShape shape, int64_t rows, const T* sinks, const T* out,
          const float* log_sum_exp, const T* dout, float* terms) {
  const Place place(shape);
  if (place.row >= rows) return;
  const int64_t first = place.row * shape.head_size;
  float dot = 0;
  for (int i = static_cast<int>(threadIdx.x); i < shape.head_size; i += kWarp) {
    dot += Widen(dout + first + i) * Widen(out + first + i);
  }
  dot = WarpSum(dot);
  if (threadIdx.x != 0) return;
  terms[place.row] = -expf(Widen(sinks + place.head) - log_sum_exp[place.statistic]) * dot;
}

int64_t RowsOf(const AttentionShape& shape) {
  return int64_t{shape.batch} * shape.sequence_length * shape.heads;
}

size_t TermsBytes(const AttentionShape& shape) {
  return RoundUp(RowsOf(shape) * static_cast<int64_t>(sizeof(float)), 64);
}

}  // namespace

template <typename T>
void AttentionSinkForward(const AttentionShape& shape, const T* sinks, T* out, float* log_sum_exp,
                          Stream& stream) {
  const int64_t rows = RowsOf(shape);
  if (rows == 0) return;
  Launch(stream, "attention_sink_forward", CeilDivide(rows, kHeadsPerBlock),
         dim3(kWarp, kHeadsPerBlock), Forward<T>, shape, rows, sinks, out, log_sum_exp);
}

size_t AttentionSinkWorkspaceBytes(const AttentionShape& shape) {
  return TermsBytes(shape) + BiasWorkspaceBytes(shape.batch * shape.sequence_length, shape.heads);
}

template <typename T>
void AttentionSinkBackward(const AttentionShape& shape, const T* sinks, const T* out,
                           const float* log_sum_exp, const T* dout, bool adds, float* dsinks,
                           const Workspace& workspace, Stream& stream) {
  const int64_t rows = RowsOf(shape);
  if (rows == 0) return;
  auto* const terms = workspace.As<float>(AttentionSinkWorkspaceBytes(shape));
  Launch(stream, "attention_sink_backward", CeilDivide(rows, kHeadsPerBlock),
         dim3(kWarp, kHeadsPerBlock), Terms<T>, shape, rows, sinks, out, log_sum_exp, dout, terms);
  const size_t terms_bytes = TermsBytes(shape);
  cuda::BiasBackward<float>(
      shape.batch * shape.sequence_length, shape.heads, terms, adds, dsinks,
      {reinterpret_cast<char*>(terms) + terms_bytes, workspace.bytes - terms_bytes}, stream);
}

CONVENE_INSTANTIATE(AttentionSinkForward);
CONVENE_INSTANTIATE(AttentionSinkBackward);

}  // namespace convene::worker::cuda

// Cross-entropy over a slice of the vocabulary: statistics read the logits once, the gradient reads
// and overwrites them once. A block per row; where one kernel makes both, a block goes through
// every blocks-th row.
#include <cmath>
#include <cstdint>

#include "worker_runtime/ops/cuda/cuda_ops.h"
#include "worker_runtime/ops/cuda/launch.cuh"
#include "worker_runtime/ops/cuda/partial_sums.cuh"
#include "worker_runtime/ops/cuda/vector.cuh"
#include "worker_runtime/ops/instantiate.h"

namespace convene::worker::cuda {
namespace {

constexpr int kMaxThreads = 512;
constexpr int kUnroll = 4;
constexpr float kInfinity = INFINITY;

// e^(x - max). Where all are -inf there is no maximum to subtract: e^-inf is 0, not NaN.
template <typename T>
struct ExpFrom {
  float shift;
  __device__ __forceinline__ explicit ExpFrom(float max) : shift(max == -kInfinity ? 0.0f : max) {}
  __device__ __forceinline__ float operator()(float x) const { return Exp<T>(x - shift); }
};

// The maximum of the numbers added so far and the sum of e^(x - max). A NaN is never the maximum,
// but makes the sum NaN.
template <typename T>
struct OnlineSum {
  float max = -kInfinity;
  float sum = 0;

  template <int kCount>
  __device__ __forceinline__ void Add(const Floats<kCount>& x) {
    float new_max = max;
#pragma unroll
    for (int i = 0; i < kCount; ++i) new_max = fmaxf(new_max, x[i]);
    const ExpFrom<T> exp(new_max);
    if (new_max != max) {
      sum *= exp(max);
      max = new_max;
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i) sum += exp(x[i]);
  }

  __device__ __forceinline__ void Merge(float other_max, float other_sum) {
    const float new_max = fmaxf(max, other_max);
    const ExpFrom<T> exp(new_max);
    sum = sum * exp(max) + other_sum * exp(other_max);
    max = new_max;
  }

  // The first lane gets the whole warp's maximum and sum.
  __device__ __forceinline__ void MergeWarp() {
#pragma unroll
    for (int distance = kWarp / 2; distance > 0; distance /= 2) {
      const float other_max = __shfl_down_sync(0xffffffffu, max, distance);
      const float other_sum = __shfl_down_sync(0xffffffffu, sum, distance);
      Merge(other_max, other_sum);
    }
  }
};

template <typename T>
__device__ __forceinline__ RowCut Cut(const T* row, int columns) {
  return CutRow(reinterpret_cast<uintptr_t>(row), sizeof(T), columns);
}

// A row's maximum and sum, in the block's first thread. `is_constant`: no thread writes the logits
// during the kernel.
template <bool is_constant, typename T>
__device__ __forceinline__ OnlineSum<T> RowStatistics(const T* x, const RowCut& cut) {
  constexpr int kWidth = kWide<T>;
  __shared__ float maxima[kWarp];
  __shared__ float warp_sums[kWarp];
  const auto load = [](const T* from) {
    return is_constant ? LoadConstant<kWidth>(from) : Load<kWidth>(from);
  };
  const int thread = static_cast<int>(threadIdx.x);
  const int step = static_cast<int>(blockDim.x);
  const T* body = x + cut.head;
  const T* tail = body + int64_t{cut.vectors} * kWidth;

  OnlineSum<T> online;
  // The row's head and tail are each shorter than a warp.
  if (thread < cut.head) online.Add(Floats<1>{{Widen(x + thread)}});
  if (thread < cut.tail) online.Add(Floats<1>{{Widen(tail + thread)}});
  int64_t i = thread;
  for (; i + (kUnroll - 1) * step < cut.vectors; i += kUnroll * step) {
    Vector<T, kWidth> loaded[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      loaded[u] = load(body + (i + u * step) * kWidth);
    }
    Floats<kUnroll * kWidth> values;
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const Floats<kWidth> part = Unpack(loaded[u]);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) values[u * kWidth + j] = part[j];
    }
    online.Add(values);
  }
  for (; i < cut.vectors; i += step) online.Add(Unpack(load(body + i * kWidth)));

  online.MergeWarp();
  if (thread % kWarp == 0) {
    maxima[thread / kWarp] = online.max;
    warp_sums[thread / kWarp] = online.sum;
  }
  __syncthreads();
  if (thread >= kWarp) return online;
  const bool is_warp = thread < step / kWarp;
  online.max = is_warp ? maxima[thread] : -kInfinity;
  online.sum = is_warp ? warp_sums[thread] : 0.0f;
  online.MergeWarp();
  return online;
}

template <typename T>
__device__ __forceinline__ void WriteStatistics(const OnlineSum<T>& online, int64_t target,
                                                const T* x, int columns, float* row_max,
                                                float* sums) {
  *row_max = online.max;
  sums[0] = online.sum;
  sums[1] = target >= 0 && target < columns ? Widen(x + target) : 0.0f;
}

template <typename T>
__global__ void __launch_bounds__(kMaxThreads)
    Statistics(int vocabulary_begin, int columns, const int32_t* targets, const T* logits,
               float* row_max, float* sums) {
  // From the last row to the first: the product has just written the last, and the gradient begins
  // with the first. The last rows are still in the cache.
  const int64_t row = gridDim.x - 1 - blockIdx.x;
  const T* x = logits + row * columns;
  const OnlineSum<T> online = RowStatistics</*is_constant=*/true>(x, Cut(x, columns));
  if (threadIdx.x != 0) return;
  WriteStatistics(online, int64_t{targets[row]} - vocabulary_begin, x, columns, row_max + row,
                  sums + 2 * row);
}

__global__ void __launch_bounds__(kFlatThreads)
    Rescale(int rows, const float* slice_max, const float* row_max, float* sums) {
  const int64_t row = int64_t{blockIdx.x} * kFlatThreads + threadIdx.x;
  if (row < rows) sums[2 * row] *= expf(slice_max[row] - row_max[row]);
}

__global__ void __launch_bounds__(kSumThreads)
    Loss(int rows, const int32_t* targets, const float* row_max, const float* sums,
         double* partials) {
  __shared__ double scratch[kWarp];
  double loss = 0;
  for (int64_t row = int64_t{blockIdx.x} * kSumThreads + threadIdx.x; row < rows;
       row += int64_t{gridDim.x} * kSumThreads) {
    if (targets[row] < 0) continue;
    loss += log(static_cast<double>(sums[2 * row])) + static_cast<double>(row_max[row]) -
            static_cast<double>(sums[2 * row + 1]);
  }
  const double total = BlockSum(loss, scratch);
  if (threadIdx.x == 0) partials[blockIdx.x] = total;
}

// The gradient of one row's elements, of which `target` is the target's (none if it is outside).
template <typename T>
struct RowGradient {
  ExpFrom<T> exp;
  float sum;
  float scale;
  float factor;  // scale / sum
  int64_t target;

  // x: the elements from `begin`.
  template <int kCount>
  __device__ __forceinline__ Vector<T, kCount> operator()(const Vector<T, kCount>& x,
                                                          int64_t begin) const {
    const Floats<kCount> logits = Unpack(x);
    Floats<kCount> gradients;
#pragma unroll
    for (int j = 0; j < kCount; ++j) gradients[j] = exp(logits[j]) * factor;
    if (target >= begin && target < begin + kCount) {
#pragma unroll
      for (int j = 0; j < kCount; ++j) {
        if (begin + j == target) gradients[j] = scale * (exp(logits[j]) / sum - 1.0f);
      }
    }
    return Pack<T>(gradients);
  }
};

template <typename T>
__device__ void FillWithZeros(T* x, const RowCut& cut) {
  constexpr int kWidth = kWide<T>;
  T* body = x + cut.head;
  T* tail = body + int64_t{cut.vectors} * kWidth;
  if (threadIdx.x < cut.head) Narrow(0.0f, x + threadIdx.x);
  if (threadIdx.x < cut.tail) Narrow(0.0f, tail + threadIdx.x);
  for (int64_t i = threadIdx.x; i < cut.vectors; i += blockDim.x) {
    Store(Vector<T, kWidth>{}, body + i * kWidth);
  }
}

template <typename T>
__device__ __forceinline__ void MakeGradient(const RowGradient<T>& gradient, const RowCut& cut,
                                             T* x) {
  constexpr int kWidth = kWide<T>;
  const int thread = static_cast<int>(threadIdx.x);
  const int step = static_cast<int>(blockDim.x);
  T* body = x + cut.head;
  const int64_t tail = cut.head + int64_t{cut.vectors} * kWidth;
  if (thread < cut.head) Store(gradient(Load<1>(x + thread), thread), x + thread);
  if (thread < cut.tail)
    Store(gradient(Load<1>(x + tail + thread), tail + thread), x + tail + thread);
  int64_t i = thread;
  for (; i + (kUnroll - 1) * step < cut.vectors; i += kUnroll * step) {
    Vector<T, kWidth> loaded[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) loaded[u] = Load<kWidth>(body + (i + u * step) * kWidth);
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int64_t at = (i + u * step) * kWidth;
      Store(gradient(loaded[u], cut.head + at), body + at);
    }
  }
  for (; i < cut.vectors; i += step) {
    const int64_t at = i * kWidth;
    Store(gradient(Load<kWidth>(body + at), cut.head + at), body + at);
  }
}

template <typename T>
__global__ void __launch_bounds__(kMaxThreads)
    Gradient(int vocabulary_begin, int columns, const int32_t* targets, const float* row_max,
             const float* sums, const float* gradient_scale, T* logits) {
  const int64_t row = blockIdx.x;
  T* x = logits + row * columns;
  const RowCut cut = Cut(x, columns);
  if (targets[row] < 0) return FillWithZeros(x, cut);
  const float scale = *gradient_scale;
  const float sum = sums[2 * row];
  MakeGradient<T>(
      {ExpFrom<T>(row_max[row]), sum, scale, scale / sum, int64_t{targets[row]} - vocabulary_begin},
      cut, x);
}

template <typename T>
__global__ void __launch_bounds__(kMaxThreads)
    AtOnce(int rows, int vocabulary_begin, int columns, const int32_t* targets,
           const float* gradient_scale, float* row_max, float* sums, T* logits) {
  __shared__ float max_and_sum[2];  // of the block's row
  const float scale = *gradient_scale;
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    T* x = logits + row * columns;
    const RowCut cut = Cut(x, columns);
    const int64_t target = int64_t{targets[row]} - vocabulary_begin;
    // Behind its barrier no thread reads the numbers of the row before any more.
    const OnlineSum<T> online = RowStatistics</*is_constant=*/false>(x, cut);
    if (threadIdx.x == 0) {
      WriteStatistics(online, target, x, columns, row_max + row, sums + 2 * row);
      max_and_sum[0] = online.max;
      max_and_sum[1] = online.sum;
    }
    // From here on the target's logit may change.
    __syncthreads();
    if (targets[row] < 0) {
      FillWithZeros(x, cut);
    } else {
      const float sum = max_and_sum[1];
      MakeGradient<T>({ExpFrom<T>(max_and_sum[0]), sum, scale, scale / sum, target}, cut, x);
    }
  }
}

}  // namespace

template <typename T>
void CrossEntropyStatistics(int rows, int vocabulary_begin, int vocabulary_end,
                            const int32_t* targets, const T* logits, float* row_max, float* sums,
                            Stream& stream) {
  const int columns = vocabulary_end - vocabulary_begin;
  Launch(stream, "cross_entropy_statistics", rows, dim3(CrossEntropyThreads(columns, kWide<T>)),
         Statistics<T>, vocabulary_begin, columns, targets, logits, row_max, sums);
}

void CrossEntropyRescale(int rows, const float* slice_max, const float* row_max, float* sums,
                         Stream& stream) {
  Launch(stream, "cross_entropy_rescale", FlatBlocks(rows, 1, 1), dim3(kFlatThreads), Rescale, rows,
         slice_max, row_max, sums);
}

size_t CrossEntropyWorkspaceBytes(int rows) {
  return sizeof(double) * static_cast<size_t>(CrossEntropyPartials(rows));
}

void CrossEntropyLoss(int rows, const int32_t* targets, const float* row_max, const float* sums,
                      double* loss_sum, const Workspace& workspace, Stream& stream) {
  if (rows == 0) return;
  const char* op = "cross_entropy_loss";
  auto* partials = workspace.As<double>(CrossEntropyWorkspaceBytes(rows));
  const int blocks = CrossEntropyPartials(rows);
  Launch(stream, op, blocks, dim3(kSumThreads), Loss, rows, targets, row_max, sums, partials);
  Launch(stream, op, 1, dim3(kSumThreads), AddPartialSums, blocks,
         static_cast<const double*>(partials), loss_sum);
}

template <typename T>
void CrossEntropyGradient(int rows, int vocabulary_begin, int vocabulary_end,
                          const int32_t* targets, const float* row_max, const float* sums,
                          const float* gradient_scale, T* logits, Stream& stream) {
  const int columns = vocabulary_end - vocabulary_begin;
  Launch(stream, "cross_entropy_gradient", rows, dim3(CrossEntropyThreads(columns, kWide<T>)),
         Gradient<T>, vocabulary_begin, columns, targets, row_max, sums, gradient_scale, logits);
}

template <typename T>
void CrossEntropyAtOnce(int rows, int vocabulary_begin, int vocabulary_end, const int32_t* targets,
                        const float* gradient_scale, float* row_max, float* sums, T* logits,
                        Stream& stream) {
  const int columns = vocabulary_end - vocabulary_begin;
  const int blocks = CrossEntropyAtOnceBlocks(rows, sizeof(T) * static_cast<size_t>(columns),
                                              stream.queue().multiprocessors());
  Launch(stream, "cross_entropy_at_once", blocks, dim3(CrossEntropyThreads(columns, kWide<T>)),
         AtOnce<T>, rows, vocabulary_begin, columns, targets, gradient_scale, row_max, sums,
         logits);
}

CONVENE_INSTANTIATE(CrossEntropyStatistics);
CONVENE_INSTANTIATE(CrossEntropyGradient);
CONVENE_INSTANTIATE(CrossEntropyAtOnce);

}  // namespace convene::worker::cuda

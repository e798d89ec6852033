// Sums, conversions and the norm of flat arrays.
#include <cstdint>

#include "worker_runtime/ops/cuda/cuda_ops.h"
#include "worker_runtime/ops/cuda/launch.cuh"
#include "worker_runtime/ops/cuda/partial_sums.cuh"
#include "worker_runtime/ops/cuda/tile.cuh"
#include "worker_runtime/ops/cuda/vector.cuh"
#include "worker_runtime/ops/instantiate.h"

namespace convene::worker::cuda {
namespace {

constexpr int kUnroll = 4;

// The elements after the last whole vector, one for each thread of the first block.
template <int kWidth, typename Element>
__device__ __forceinline__ void ForRest(int64_t count, const Element& element) {
  if (blockIdx.x != 0) return;
  const int64_t i = count / kWidth * kWidth + threadIdx.x;
  if (i < count) element(i);
}

template <typename T, int kWidth>
__global__ void __launch_bounds__(kFlatThreads) Add(int64_t count, const T* x, T* y) {
  const int64_t vectors = count / kWidth;
  Vector<T, kWidth> left[kUnroll];
  Vector<T, kWidth> right[kUnroll];
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const int64_t i = FlatVectorAt(u, kUnroll);
    if (i >= vectors) break;
    left[u] = Load<kWidth>(x + i * kWidth);
    right[u] = Load<kWidth>(y + i * kWidth);
  }
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const int64_t i = FlatVectorAt(u, kUnroll);
    if (i >= vectors) break;
    Floats<kWidth> sum = Unpack(right[u]);
    const Floats<kWidth> other = Unpack(left[u]);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) sum[j] += other[j];
    Store(Pack<T>(sum), y + i * kWidth);
  }
  ForRest<kWidth>(count, [&](int64_t i) { Narrow(Widen(y + i) + Widen(x + i), y + i); });
}

template <typename T, int kWidth>
__global__ void __launch_bounds__(kFlatThreads) Scale(int64_t count, float factor, T* x) {
  const int64_t vectors = count / kWidth;
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const int64_t i = FlatVectorAt(u, kUnroll);
    if (i >= vectors) break;
    Floats<kWidth> values = Unpack(Load<kWidth>(x + i * kWidth));
#pragma unroll
    for (int j = 0; j < kWidth; ++j) values[j] *= factor;
    Store(Pack<T>(values), x + i * kWidth);
  }
  ForRest<kWidth>(count, [&](int64_t i) { Narrow(factor * Widen(x + i), x + i); });
}

template <typename T, int kWidth>
__global__ void __launch_bounds__(kFlatThreads) Cap(int64_t count, float cap, T* x) {
  const int64_t vectors = count / kWidth;
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const int64_t i = FlatVectorAt(u, kUnroll);
    if (i >= vectors) break;
    Floats<kWidth> values = Unpack(Load<kWidth>(x + i * kWidth));
#pragma unroll
    for (int j = 0; j < kWidth; ++j) values[j] = cap * tanhf(values[j] / cap);
    Store(Pack<T>(values), x + i * kWidth);
  }
  ForRest<kWidth>(count, [&](int64_t i) { Narrow(cap * tanhf(Widen(x + i) / cap), x + i); });
}

__device__ __forceinline__ float BehindCap(float gradient, float capped, float cap) {
  return gradient * (1.0f - capped / cap * (capped / cap));
}

template <typename T, int kWidth>
__global__ void __launch_bounds__(kFlatThreads)
    CapBackward(int64_t count, float cap, const T* capped, T* dx) {
  const int64_t vectors = count / kWidth;
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const int64_t i = FlatVectorAt(u, kUnroll);
    if (i >= vectors) break;
    const Floats<kWidth> values = Unpack(LoadConstant<kWidth>(capped + i * kWidth));
    Floats<kWidth> gradients = Unpack(Load<kWidth>(dx + i * kWidth));
#pragma unroll
    for (int j = 0; j < kWidth; ++j) gradients[j] = BehindCap(gradients[j], values[j], cap);
    Store(Pack<T>(gradients), dx + i * kWidth);
  }
  ForRest<kWidth>(
      count, [&](int64_t i) { Narrow(BehindCap(Widen(dx + i), Widen(capped + i), cap), dx + i); });
}

template <typename From, typename To, int kWidth>
__global__ void __launch_bounds__(kFlatThreads) Convert(int64_t count, const From* x, To* y) {
  const int64_t vectors = count / kWidth;
  Vector<From, kWidth> values[kUnroll];
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const int64_t i = FlatVectorAt(u, kUnroll);
    if (i >= vectors) break;
    values[u] = LoadConstant<kWidth>(x + i * kWidth);
  }
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const int64_t i = FlatVectorAt(u, kUnroll);
    if (i >= vectors) break;
    Store(Pack<To>(Unpack(values[u])), y + i * kWidth);
  }
  ForRest<kWidth>(count, [&](int64_t i) { Narrow(Widen(x + i), y + i); });
}

// The float side moves 16 bytes an access, the bfloat16 side 8: both sides of a warp's access are
// whole and contiguous, as they would not be with 16 bytes of bfloat16 and two of 16 of float.
template <typename From, typename To>
void ConvertAll(const char* op, int64_t count, const From* x, To* y, Stream& stream) {
  constexpr int kWidth = kWide<float>;
  const bool wide =
      IsAligned(sizeof(From), kWidth, 0, {x}) && IsAligned(sizeof(To), kWidth, 0, {y});
  Launch(stream, op, FlatBlocks(count, wide ? kWidth : 1, kUnroll), dim3(kFlatThreads),
         wide ? Convert<From, To, kWidth> : Convert<From, To, 1>, count, x, y);
}

// `pieces` blocks a row. REQUIRES: columns and strides are multiples of kWidth.
template <typename From, typename To, int kWidth>
__global__ void __launch_bounds__(kFlatThreads)
    ConvertRow(int columns, int pieces, const From* x, int64_t x_stride, To* y, int64_t y_stride) {
  const int row = static_cast<int>(blockIdx.x) / pieces;
  const int piece = static_cast<int>(blockIdx.x) % pieces;
  const From* from = x + int64_t{row} * x_stride;
  To* to = y + int64_t{row} * y_stride;
  for (int64_t i = (int64_t{piece} * kFlatThreads + threadIdx.x) * kWidth; i < columns;
       i += int64_t{pieces} * kFlatThreads * kWidth) {
    Store(Pack<To>(Unpack(LoadConstant<kWidth>(from + i))), to + i);
  }
}

template <typename From, typename To>
void ConvertRows(const char* op, int64_t rows, int columns, const From* x, int64_t x_stride, To* y,
                 int64_t y_stride, Stream& stream) {
  constexpr int kWidth = kWide<float>;
  const bool wide = columns % kWidth == 0 && IsAligned(sizeof(From), kWidth, x_stride, {x}) &&
                    IsAligned(sizeof(To), kWidth, y_stride, {y});
  // Rows may be few and long: chunks of keys.
  constexpr int kColumnsOfPiece = 8 * kFlatThreads * kWidth;
  const int pieces = (columns + kColumnsOfPiece - 1) / kColumnsOfPiece;
  Launch(stream, op, rows * pieces, dim3(kFlatThreads),
         wide ? ConvertRow<From, To, kWidth> : ConvertRow<From, To, 1>, columns, pieces, x,
         x_stride, y, y_stride);
}

// Block b leaves the sum of its tiles of kSumThreads * kSumUnroll vectors: tile b and every
// gridDim.x-th after it. REQUIRES: count is a multiple of kFlagBlock, x of 16 bytes.
__global__ void __launch_bounds__(kSumThreads)
    SumSquares(int64_t count, const float* x, const uint8_t* flags, double* partials) {
  constexpr int kWidth = kWide<float>;
  constexpr int kTile = kSumThreads * kSumUnroll;
  __shared__ double scratch[kWarp];
  const int64_t vectors = count / kWidth;
  double sums[kWidth] = {};
  for (int64_t begin = int64_t{blockIdx.x} * kTile; begin < vectors;
       begin += int64_t{gridDim.x} * kTile) {
    Vector<float, kWidth> values[kSumUnroll] = {};
    uint8_t flag[kSumUnroll] = {};
#pragma unroll
    for (int u = 0; u < kSumUnroll; ++u) {
      const int64_t i = begin + u * kSumThreads + threadIdx.x;
      if (i >= vectors) continue;
      values[u] = LoadConstant<kWidth>(x + i * kWidth);
      flag[u] = __ldg(flags + i / (kFlagBlock / kWidth));
    }
#pragma unroll
    for (int u = 0; u < kSumUnroll; ++u) {
      // A block that is not counted may hold NaN: it is left out, not multiplied by zero.
      if ((flag[u] & kOwned) == 0) continue;
      const Floats<kWidth> value = Unpack(values[u]);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        sums[j] += static_cast<double>(value[j]) * static_cast<double>(value[j]);
      }
    }
  }
  const double total = BlockSum((sums[0] + sums[1]) + (sums[2] + sums[3]), scratch);
  if (threadIdx.x == 0) partials[blockIdx.x] = total;
}

__global__ void AddOneByOne(int64_t count, const double* x, double* sum) {
  double total = *sum;
  for (int64_t i = 0; i < count; ++i) total += x[i];
  *sum = total;
}

}  // namespace

template <typename T>
void ScaleInPlace(int64_t count, float factor, T* x, Stream& stream) {
  const bool wide = IsWide<T>(0, {x});
  Launch(stream, "scale_in_place", FlatBlocks(count, wide ? kWide<T> : 1, kUnroll),
         dim3(kFlatThreads), wide ? Scale<T, kWide<T>> : Scale<T, 1>, count, factor, x);
}
CONVENE_INSTANTIATE(ScaleInPlace);

template <typename T>
void SoftCap(int64_t count, float cap, T* x, Stream& stream) {
  const bool wide = IsWide<T>(0, {x});
  Launch(stream, "soft_cap", FlatBlocks(count, wide ? kWide<T> : 1, kUnroll), dim3(kFlatThreads),
         wide ? Cap<T, kWide<T>> : Cap<T, 1>, count, cap, x);
}
CONVENE_INSTANTIATE(SoftCap);

template <typename T>
void SoftCapBackward(int64_t count, float cap, const T* capped, T* dx, Stream& stream) {
  const bool wide = IsWide<T>(0, {capped, dx});
  Launch(stream, "soft_cap_backward", FlatBlocks(count, wide ? kWide<T> : 1, kUnroll),
         dim3(kFlatThreads), wide ? CapBackward<T, kWide<T>> : CapBackward<T, 1>, count, cap,
         capped, dx);
}
CONVENE_INSTANTIATE(SoftCapBackward);

template <typename T>
void AddInPlace(int64_t count, const T* x, T* y, Stream& stream) {
  const bool wide = IsWide<T>(0, {x, y});
  Launch(stream, "add_in_place", FlatBlocks(count, wide ? kWide<T> : 1, kUnroll),
         dim3(kFlatThreads), wide ? Add<T, kWide<T>> : Add<T, 1>, count, x, y);
}
CONVENE_INSTANTIATE(AddInPlace);

void Copy(int64_t count, const float* x, float* y, Stream& stream) {
  if (count == 0) return;
  Queue& queue = stream.queue();
  queue.Report(cudaMemcpyAsync(y, x, static_cast<size_t>(count) * sizeof(float),
                               cudaMemcpyDeviceToDevice, queue.stream()),
               "copy");
}

template <typename T>
void CopyRows(int64_t rows, int columns, const T* x, int64_t x_stride, T* y, int64_t y_stride,
              Stream& stream) {
  ConvertRows("copy_rows", rows, columns, x, x_stride, y, y_stride, stream);
}
CONVENE_INSTANTIATE(CopyRows);

template <typename T>
void RoundRows(int64_t rows, int columns, const float* x, int64_t x_stride, T* y, int64_t y_stride,
               Stream& stream) {
  ConvertRows("round_rows", rows, columns, x, x_stride, y, y_stride, stream);
}
CONVENE_INSTANTIATE(RoundRows);

void ToBFloat16(int64_t count, const float* x, BFloat16* y, Stream& stream) {
  ConvertAll("to_bfloat16", count, x, y, stream);
}

void ToFloat(int64_t count, const BFloat16* x, float* y, Stream& stream) {
  ConvertAll("to_float", count, x, y, stream);
}

size_t SumOfSquaresWorkspaceBytes(int64_t count) {
  return sizeof(double) * static_cast<size_t>(SumOfSquaresPartials(count));
}

void SumOfSquares(int64_t count, const float* x, const uint8_t* flags, double* sum,
                  const Workspace& workspace, Stream& stream) {
  if (count == 0) return;
  const char* op = "sum_of_squares";
  auto* partials = workspace.As<double>(SumOfSquaresWorkspaceBytes(count));
  const int blocks = SumOfSquaresPartials(count);
  Launch(stream, op, blocks, dim3(kSumThreads), SumSquares, count, x, flags, partials);
  Launch(stream, op, 1, dim3(kSumThreads), AddPartialSums, blocks,
         static_cast<const double*>(partials), sum);
}

void AddInOrder(int64_t count, const double* x, double* sum, Stream& stream) {
  Launch(stream, "add_in_order", 1, dim3(1), AddOneByOne, count, x, sum);
}

}  // namespace convene::worker::cuda

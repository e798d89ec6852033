// Sums over the rows of a matrix, a sum for each column, in two launches and a fixed order: blocks
// leave partial rows, then the partial rows are added.
#pragma once

#include <cstdint>

#include "worker_runtime/ops/cuda/launch.cuh"
#include "worker_runtime/ops/cuda/vector.cuh"

namespace convene::worker::cuda {

// target += the sum of the partial rows, or = it. A block has 32 columns; its warp w adds rows w,
// w + 32, ..., then the first warp adds the warps' sums.
inline constexpr int kPartialWarps = 32;
static __global__ void __launch_bounds__(kWarp* kPartialWarps)
    AddPartials(int partial_rows, int columns, const float* partials, bool adds, float* target) {
  __shared__ float sums[kPartialWarps][kWarp];
  const int64_t column = int64_t{blockIdx.x} * kWarp + threadIdx.x;
  float sum = 0;
  if (column < columns) {
#pragma unroll 8
    for (int row = static_cast<int>(threadIdx.y); row < partial_rows; row += kPartialWarps) {
      sum += partials[int64_t{row} * columns + column];
    }
  }
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || column >= columns) return;
  sum = 0;
#pragma unroll
  for (int warp = 0; warp < kPartialWarps; ++warp) sum += sums[warp][threadIdx.x];
  target[column] = adds ? target[column] + sum : sum;
}

// Queues AddPartials for (partial_rows, columns) of partial sums.
inline void LaunchAddPartials(const char* op, int partial_rows, int columns, const float* partials,
                              bool adds, float* target, Stream& stream) {
  Launch(stream, op, CeilDivide(columns, kWarp), dim3(kWarp, kPartialWarps), AddPartials,
         partial_rows, columns, partials, adds, target);
}

// partials: (Terms::kSums, partial_rows, columns). Block b makes the columns of its chunk of the
// partial row b / chunks, from every partial_rows-th row of the matrix. terms.Add<kWidth>(row,
// column, sums) adds the terms of a row from a column on to kSums sums.
template <int kWidth, typename Terms>
__global__ void __launch_bounds__(kColumnSumThreads)
    SumColumns(int rows, int columns, int chunks, int partial_rows, const Terms terms,
               float* partials) {
  const int64_t first = blockIdx.x / static_cast<unsigned int>(chunks);
  const int64_t chunk = blockIdx.x % static_cast<unsigned int>(chunks);
  const int64_t column = (chunk * blockDim.x + threadIdx.x) * kWidth;
  if (column >= columns) return;
  Floats<kWidth> sums[Terms::kSums] = {};
  for (int64_t row = first; row < rows; row += partial_rows) {
    terms.template Add<kWidth>(row, column, sums);
  }
#pragma unroll
  for (int s = 0; s < Terms::kSums; ++s) {
    float* partial = partials + (int64_t{s} * partial_rows + first) * columns + column;
#pragma unroll
    for (int j = 0; j < kWidth; ++j) partial[j] = sums[s][j];
  }
}

// The columns' sums of `rows` > 0 rows to Terms::kSums targets. partials: ColumnSumBytes.
template <typename T, typename Terms>
void LaunchColumnSums(const char* op, int rows, int columns, bool is_wide, const Terms& terms,
                      float* partials, bool adds, float* const (&targets)[Terms::kSums],
                      Stream& stream) {
  const ColumnSumGeometry g = MakeColumnSumGeometry(rows, is_wide ? columns / kWide<T> : columns);
  Launch(stream, op, int64_t{g.partial_rows} * g.chunks, dim3(g.threads),
         is_wide ? SumColumns<kWide<T>, Terms> : SumColumns<1, Terms>, rows, columns, g.chunks,
         g.partial_rows, terms, partials);
  for (int s = 0; s < Terms::kSums; ++s) {
    LaunchAddPartials(op, g.partial_rows, columns, partials + int64_t{s} * g.partial_rows * columns,
                      adds, targets[s], stream);
  }
}

}  // namespace convene::worker::cuda

// Sums that no order and no grouping changes. A thread takes an element, a warp a block of squares.
#include <algorithm>
#include <cstdint>

#include "worker_runtime/ops/cuda/cuda_ops.h"
#include "worker_runtime/ops/cuda/launch.cuh"
#include "worker_runtime/ops/cuda/tile.cuh"
#include "worker_runtime/ops/cuda/vector.cuh"

namespace convene::worker::cuda {
namespace {

constexpr int kUnroll = 4;
constexpr int kSquareWarps = kSumThreads / kWarp;
constexpr int64_t kSquareBlocksMax = 1056;

__device__ __forceinline__ BinnedDigits At(const BinnedSums& sums, int64_t i) {
  return {sums.high[i], sums.low[i], sums.bins[i]};
}

__device__ __forceinline__ void Put(const BinnedDigits& sum, int64_t i, const BinnedSums& sums) {
  sums.high[i] = sum.high;
  sums.low[i] = sum.low;
  sums.bins[i] = static_cast<uint8_t>(sum.bin);
}

// A microbatch leaves most rows of a table of tokens zero: these change nothing.
__global__ void __launch_bounds__(kFlatThreads)
    Add(int64_t count, int bits, int inverse, bool is_first, const float* x, BinnedSums sums) {
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const int64_t i = FlatVectorAt(u, kUnroll);
    if (i >= count) break;
    const float value = __ldg(x + i);
    if (value == 0 && !is_first) continue;
    Put(DigitsPlus(is_first ? BinnedDigits{0, 0, 0} : At(sums, i), value, bits, inverse), i, sums);
  }
}

__global__ void __launch_bounds__(kFlatThreads)
    Merge(int64_t count, const BinnedSums x, BinnedSums sums) {
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const int64_t i = FlatVectorAt(u, kUnroll);
    if (i >= count) break;
    const BinnedDigits digits = x.high == nullptr ? BinnedDigits{0, 0, x.bins[i]} : At(x, i);
    Put(Merged(digits, At(sums, i)), i, sums);
  }
}

__global__ void __launch_bounds__(kFlatThreads) Round(int64_t count, int bits, BinnedSums sums) {
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const int64_t i = FlatVectorAt(u, kUnroll);
    if (i >= count) break;
    sums.high[i] = SameBits<int32_t>(FloatOf(At(sums, i), bits));
  }
}

// Block b leaves kExactDigits digits of the sum of every gridDim.x-th group of kSquareWarps blocks.
__global__ void __launch_bounds__(kSumThreads)
    Squares(int64_t blocks, const float* x, const uint8_t* flags, double* partials) {
  __shared__ double digits[kSquareWarps * kExactDigits];
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  double* const own = digits + warp * kExactDigits;
  if (lane < kExactDigits) own[lane] = 0;
  __syncwarp();
  for (int64_t block = int64_t{blockIdx.x} * kSquareWarps + warp; block < blocks;
       block += int64_t{gridDim.x} * kSquareWarps) {
    if ((__ldg(flags + block) & kOwned) == 0) continue;
    const double a = __ldg(x + block * kFlagBlock + lane);
    const double b = __ldg(x + block * kFlagBlock + kWarp + lane);
    const double sum = WarpSum(a * a + b * b);
    if (lane == 0) AddExactly(sum, own);
  }
  __syncthreads();
  if (threadIdx.x >= kExactDigits) return;
  double sum = 0;
  for (int i = 0; i < kSquareWarps; ++i) sum += digits[i * kExactDigits + threadIdx.x];
  partials[int64_t{blockIdx.x} * kExactDigits + threadIdx.x] = sum;
}

// A thread a digit.
__global__ void __launch_bounds__(kWarp)
    AddDigits(int64_t count, const double* partials, double* digits) {
  if (threadIdx.x >= kExactDigits) return;
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += partials[i * kExactDigits + threadIdx.x];
  digits[threadIdx.x] += sum;
}

__global__ void __launch_bounds__(kWarp) AddNumbers(int64_t count, double* x, double* digits) {
  const int64_t i = threadIdx.x;
  if (i >= count) return;
  AddExactly(x[i], digits + i * kExactDigits);
  x[i] = 0;
}

__global__ void __launch_bounds__(kWarp)
    RoundNumbers(int64_t count, const double* digits, double* x) {
  const int64_t i = threadIdx.x;
  if (i < count) x[i] = RoundExactly(digits + i * kExactDigits);
}

int64_t SquareBlocks(int64_t count) {
  return std::min(CeilDivide(count / kFlagBlock, kSquareWarps), kSquareBlocksMax);
}

}  // namespace

void BinnedAdd(int64_t count, int bits, bool is_first, const float* x, const BinnedSums& sums,
               Stream& stream) {
  Launch(stream, "binned_add", FlatBlocks(count, 1, kUnroll), dim3(kFlatThreads), Add, count, bits,
         InverseOf(bits), is_first, x, sums);
}

void BinnedMerge(int64_t count, const BinnedSums& x, const BinnedSums& sums, Stream& stream) {
  Launch(stream, "binned_merge", FlatBlocks(count, 1, kUnroll), dim3(kFlatThreads), Merge, count, x,
         sums);
}

void BinnedRound(int64_t count, int bits, const BinnedSums& sums, Stream& stream) {
  Launch(stream, "binned_round", FlatBlocks(count, 1, kUnroll), dim3(kFlatThreads), Round, count,
         bits, sums);
}

size_t ExactSquaresWorkspaceBytes(int64_t count) {
  return sizeof(double) * kExactDigits * static_cast<size_t>(SquareBlocks(count));
}

void ExactSquares(int64_t count, const float* x, const uint8_t* flags, double* digits,
                  const Workspace& workspace, Stream& stream) {
  if (count == 0) return;
  const char* op = "exact_squares";
  auto* partials = workspace.As<double>(ExactSquaresWorkspaceBytes(count));
  const int64_t blocks = SquareBlocks(count);
  Launch(stream, op, blocks, dim3(kSumThreads), Squares, count / kFlagBlock, x, flags, partials);
  Launch(stream, op, 1, dim3(kWarp), AddDigits, blocks, static_cast<const double*>(partials),
         digits);
}

void ExactAdd(int64_t count, double* x, double* digits, Stream& stream) {
  Launch(stream, "exact_add", 1, dim3(kWarp), AddNumbers, count, x, digits);
}

void ExactRound(int64_t count, const double* digits, double* x, Stream& stream) {
  Launch(stream, "exact_round", 1, dim3(kWarp), RoundNumbers, count, digits, x);
}

}  // namespace convene::worker::cuda

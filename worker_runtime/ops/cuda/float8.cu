// The largest magnitude of a tensor, and its numbers as 8-bit floats, plain and turned round.
#include <cuda_fp8.h>

#include <cstdint>
#include <cstring>

#include "tools/base/check.h"
#include "tools/base/rounding.h"
#include "worker_runtime/device/float8.h"
#include "worker_runtime/ops/cuda/cuda_ops.h"
#include "worker_runtime/ops/cuda/launch.cuh"
#include "worker_runtime/ops/cuda/tile.cuh"
#include "worker_runtime/ops/cuda/vector.cuh"
#include "worker_runtime/ops/instantiate.h"

namespace convene::worker::cuda {
namespace {

constexpr int kUnroll = 8;
constexpr int kTile = 64;  // rows, and columns
constexpr int kTileRowThreads = kTile / 8;
constexpr int kTilePasses = kTile / (kTileThreads / kTileRowThreads);
constexpr int kTurned = 16;  // codes that a thread writes turned round
static_assert(kTileThreads == kTile * (kTile / kTurned));

// Magnitudes rise with their bits, and a NaN's are above all. The largest of all blocks is the same
// in any order, so atomics change no bit.
template <typename T, int kWidth>
__global__ void __launch_bounds__(kFlatThreads)
    Measure(int64_t count, const T* x, unsigned int* largest) {
  const int64_t vectors = count / kWidth;
  Vector<T, kWidth> values[kUnroll];
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const int64_t i = FlatVectorAt(u, kUnroll);
    if (i >= vectors) break;
    values[u] = LoadConstant<kWidth>(x + i * kWidth);
  }
  unsigned int most = 0;
  const auto see = [&](float value) {
    const unsigned int magnitude = __float_as_uint(value) & 0x7fffffffu;
    most = magnitude > most ? magnitude : most;
  };
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    if (FlatVectorAt(u, kUnroll) >= vectors) break;
    const Floats<kWidth> floats = Unpack(values[u]);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) see(floats[j]);
  }
  const int64_t rest = vectors * kWidth + threadIdx.x;
  if (blockIdx.x == 0 && rest < count) see(Widen(x + rest));
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    const unsigned int other = __shfl_xor_sync(0xffffffffu, most, distance);
    most = other > most ? other : most;
  }
  if (threadIdx.x % kWarp == 0) atomicMax(largest, most);
}

template <bool kIsWide>
__device__ __forceinline__ Floats<8> LoadEight(const BFloat16* from) {
  if constexpr (kIsWide) {
    return Unpack(LoadConstant<8>(from));
  } else {
    Floats<8> values;
#pragma unroll
    for (int i = 0; i < 8; ++i) values[i] = Widen(from + i);
    return values;
  }
}
template <bool kIsWide>
__device__ __forceinline__ Floats<8> LoadEight(const float* from) {
  Floats<8> values;
#pragma unroll
  for (int i = 0; i < 8; i += 4) {
    if constexpr (kIsWide) {
      const Floats<4> half = Unpack(LoadConstant<4>(from + i));
#pragma unroll
      for (int j = 0; j < 4; ++j) values[i + j] = half[j];
    } else {
#pragma unroll
      for (int j = 0; j < 4; ++j) values[i + j] = from[i + j];
    }
  }
  return values;
}

template <DType kType>
__device__ __forceinline__ Vector<uint8_t, 8> EncodeEight(const Floats<8>& values, float scale) {
  constexpr __nv_fp8_interpretation_t kFormat = kType == DType::kE4M3 ? __NV_E4M3 : __NV_E5M2;
  __nv_fp8x2_storage_t pairs[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 pair = {values[2 * i] * scale, values[2 * i + 1] * scale};
    pairs[i] = __nv_cvt_float2_to_fp8x2(pair, __NV_SATFINITE, kFormat);
  }
  Vector<uint8_t, 8> result;
  std::memcpy(&result.raw, pairs, sizeof(pairs));
  return result;
}

// A block: a tile, of which the tiles of a row of tiles lie side by side. First a thread takes 8
// columns of a row, twice; then, by way of shared memory, 16 rows of a column.
template <typename T, DType kType, bool kIsWide>
__global__ void __launch_bounds__(kTileThreads)
    Quantize(int rows, int columns, const T* x, const float* largest, float* inverse,
             uint8_t* codes, uint8_t* turned) {
  // Rows a word longer than the tile: threads then read a column from several banks.
  __shared__ unsigned int tile[kTile][kTile / 4 + 1];
  const int across = (columns + kTile - 1) / kTile;
  const int first_row = static_cast<int>(blockIdx.x) / across * kTile;
  const int first_column = static_cast<int>(blockIdx.x) % across * kTile;
  const float scale = Float8Scale(kType, *largest);
  if (blockIdx.x == 0 && threadIdx.x == 0) *inverse = 1 / scale;
#pragma unroll
  for (int pass = 0; pass < kTilePasses; ++pass) {
    const int row =
        pass * (kTileThreads / kTileRowThreads) + static_cast<int>(threadIdx.x) / kTileRowThreads;
    const int column = static_cast<int>(threadIdx.x) % kTileRowThreads * 8;
    if (first_row + row >= rows || first_column + column >= columns) continue;
    const int64_t at = int64_t{first_row + row} * columns + first_column + column;
    const Vector<uint8_t, 8> eight = EncodeEight<kType>(LoadEight<kIsWide>(x + at), scale);
    if (codes != nullptr) Store(eight, codes + at);
    tile[row][column / 4] = eight.raw.x;
    tile[row][column / 4 + 1] = eight.raw.y;
  }
  if (turned == nullptr) return;
  __syncthreads();
  const int column = static_cast<int>(threadIdx.x) / (kTile / kTurned);
  const int row = static_cast<int>(threadIdx.x) % (kTile / kTurned) * kTurned;
  if (first_column + column >= columns || first_row + row >= rows) return;
  unsigned int words[kTurned / 4];
#pragma unroll
  for (int word = 0; word < kTurned / 4; ++word) {
    words[word] = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const unsigned int four = tile[row + 4 * word + i][column / 4];
      words[word] |= ((four >> (column % 4 * 8)) & 0xffu) << (8 * i);
    }
  }
  Vector<uint8_t, kTurned> sixteen;
  std::memcpy(&sixteen.raw, words, sizeof(words));
  Store(sixteen, turned + int64_t{first_column + column} * rows + first_row + row);
}

template <typename T, DType kType>
auto QuantizeKernel(bool is_wide) {
  return is_wide ? Quantize<T, kType, true> : Quantize<T, kType, false>;
}

}  // namespace

template <typename T>
void LargestMagnitude(int64_t count, const T* x, float* largest, Stream& stream) {
  constexpr int kWidth = kWide<T>;
  Queue& queue = stream.queue();
  queue.Report(cudaMemsetAsync(largest, 0, sizeof(*largest), queue.stream()), "largest magnitude");
  const bool wide = IsWide<T>(0, {x});
  Launch(stream, "largest magnitude", FlatBlocks(count, wide ? kWidth : 1, kUnroll),
         dim3(kFlatThreads), wide ? Measure<T, kWidth> : Measure<T, 1>, count, x,
         reinterpret_cast<unsigned int*>(largest));
}

template <typename T>
void QuantizeFloat8(int rows, int columns, const T* x, DType dtype, const float* largest,
                    float* inverse, uint8_t* codes, uint8_t* turned, Stream& stream) {
  CONVENE_CHECK(rows % 16 == 0 && columns % 16 == 0);
  const bool wide = IsWide<T>(columns, {x});
  Launch(stream, "quantize", CeilDivide(rows, kTile) * CeilDivide(columns, kTile),
         dim3(kTileThreads),
         dtype == DType::kE4M3 ? QuantizeKernel<T, DType::kE4M3>(wide)
                               : QuantizeKernel<T, DType::kE5M2>(wide),
         rows, columns, x, largest, inverse, codes, turned);
}

CONVENE_INSTANTIATE(LargestMagnitude);
CONVENE_INSTANTIATE(QuantizeFloat8);

}  // namespace convene::worker::cuda

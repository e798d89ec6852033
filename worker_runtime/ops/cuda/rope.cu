// Rotary embedding in place. A thread turns one vector of several heads, which share its angles.
#include <cstdint>

#include "worker_runtime/ops/cuda/cuda_ops.h"
#include "worker_runtime/ops/cuda/launch.cuh"
#include "worker_runtime/ops/cuda/vector.cuh"
#include "worker_runtime/ops/instantiate.h"

namespace convene::worker::cuda {
namespace {

constexpr int kHeadsPerItem = 4;

template <typename T>
struct Arguments {
  int64_t rows;
  int sequence_length;
  int heads;
  int head_size;
  int half;  // of a head's turned elements
  int row_stride;
  int items;
  const float* cosines;
  const float* sines;
  const int32_t* positions;       // may be null
  const int32_t* document_begin;  // may be null
  float sign;
  T* x;
};

// One float an element: as many accesses of 16 bytes as it takes.
template <int kWidth>
__device__ __forceinline__ Floats<kWidth> LoadAngles(const float* from) {
  constexpr int kPart = kWidth < kWide<float> ? kWidth : kWide<float>;
  Floats<kWidth> result;
#pragma unroll
  for (int i = 0; i < kWidth; i += kPart) {
    const Floats<kPart> part = Unpack(LoadConstant<kPart>(from + i));
#pragma unroll
    for (int j = 0; j < kPart; ++j) result[i + j] = part[j];
  }
  return result;
}

// Heads [head, head + kHeadsPerItem) at the elements [i, i + kWidth) of both halves.
template <int kWidth, typename T>
__device__ __forceinline__ void TurnItem(const Arguments<T>& a, const Floats<kWidth>& cosines,
                                         const Floats<kWidth>& sines, int head, T* low_of_head_0) {
  Vector<T, kWidth> low[kHeadsPerItem];
  Vector<T, kWidth> high[kHeadsPerItem];
#pragma unroll
  for (int h = 0; h < kHeadsPerItem; ++h) {
    if (head + h >= a.heads) break;
    const T* from = low_of_head_0 + int64_t{head + h} * a.head_size;
    low[h] = Load<kWidth>(from);
    high[h] = Load<kWidth>(from + a.half);
  }
#pragma unroll
  for (int h = 0; h < kHeadsPerItem; ++h) {
    if (head + h >= a.heads) break;
    const Floats<kWidth> before_low = Unpack(low[h]);
    const Floats<kWidth> before_high = Unpack(high[h]);
    Floats<kWidth> after_low;
    Floats<kWidth> after_high;
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      const float sine = a.sign * sines[j];
      after_low[j] = before_low[j] * cosines[j] - before_high[j] * sine;
      after_high[j] = before_high[j] * cosines[j] + before_low[j] * sine;
    }
    T* to = low_of_head_0 + int64_t{head + h} * a.head_size;
    Store(Pack<T>(after_low), to);
    Store(Pack<T>(after_high), to + a.half);
  }
}

// The blocks that a multiprocessor runs at once: with floats, for compute capability 10.0 and 12.0,
// ptxas would spill registers to make them four. 0: its own choice, which spills nothing.
template <typename T>
constexpr int kTurnBlocks = sizeof(T) == 4 ? 3 : 0;

// REQUIRES: MakeRopeGeometry's launch, accesses of kWidth elements aligned.
template <typename T, int kWidth>
__global__ void __launch_bounds__(kTileThreads, kTurnBlocks<T>) Turn(const Arguments<T> a) {
  const int64_t row = int64_t{blockIdx.x} * blockDim.y + threadIdx.y;
  if (row >= a.rows) return;
  const int lanes = a.half / kWidth;
  const int64_t begin = a.document_begin == nullptr ? 0 : a.document_begin[row];
  const auto token = static_cast<int>(row % a.sequence_length);
  const int64_t position = a.positions == nullptr ? token : a.positions[token];
  const int64_t angles = (position - begin) * a.half;
  T* x = a.x + row * a.row_stride;
  for (int item = static_cast<int>(threadIdx.x); item < a.items;
       item += static_cast<int>(blockDim.x)) {
    const int i = item % lanes * kWidth;
    TurnItem<kWidth>(a, LoadAngles<kWidth>(a.cosines + angles + i),
                     LoadAngles<kWidth>(a.sines + angles + i), item / lanes * kHeadsPerItem, x + i);
  }
}

}  // namespace

template <typename T>
void RopeApply(int batch, int sequence_length, int heads, int head_size, int turned, int row_stride,
               const float* cosines, const float* sines, const int32_t* positions,
               const int32_t* document_begin, bool inverse, T* x, Stream& stream) {
  const int half = turned / 2;
  const int64_t rows = int64_t{batch} * sequence_length;
  if (rows == 0 || heads == 0 || half == 0) return;
  // The upper half of a head, the next head and the next row are all whole accesses away.
  const bool wide = IsWide<T>(half, {x}) && head_size % kWide<T> == 0 &&
                    row_stride % kWide<T> == 0 && IsWide<float>(half, {cosines, sines});
  const int width = wide ? kWide<T> : 1;
  const RopeGeometry g = MakeRopeGeometry(rows, heads, half / width, kHeadsPerItem);
  const Arguments<T> a = {.rows = rows,
                          .sequence_length = sequence_length,
                          .heads = heads,
                          .head_size = head_size,
                          .half = half,
                          .row_stride = row_stride,
                          .items = g.items,
                          .cosines = cosines,
                          .sines = sines,
                          .positions = positions,
                          .document_begin = document_begin,
                          .sign = inverse ? -1.0f : 1.0f,
                          .x = x};
  Launch(stream, "rope_apply", g.blocks, dim3(g.threads, g.rows_per_block),
         wide ? Turn<T, kWide<T>> : Turn<T, 1>, a);
}

CONVENE_INSTANTIATE(RopeApply);

}  // namespace convene::worker::cuda

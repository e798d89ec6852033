// Token embedding. Forward copies rows. Backward sorts (token, row) so that each token's rows stand
// together in their order: a run. A block adds up one run, or, where a run crosses the border of a
// segment of fixed size, the piece of it that lies in the segment; a second launch then adds a
// run's pieces in their order. Every element has one owner and one order.
#include <cstdint>
#include <cub/device/device_radix_sort.cuh>

#include "tools/base/check.h"
#include "worker_runtime/ops/cuda/cuda_ops.h"
#include "worker_runtime/ops/cuda/launch.cuh"
#include "worker_runtime/ops/cuda/tile.cuh"
#include "worker_runtime/ops/cuda/vector.cuh"
#include "worker_runtime/ops/instantiate.h"

namespace convene::worker::cuda {
namespace {

constexpr int kForwardUnroll = 4;

template <typename T, int kWidth>
__global__ void __launch_bounds__(kTileThreads)
    Forward(int rows, int columns, int chunks, int vocabulary_begin, int vocabulary_end,
            const int32_t* tokens, const T* table, bool adds, T* y) {
  const Tile tile(chunks, kForwardUnroll);
  if (tile.row >= rows) return;
  const int vectors = columns / kWidth;
  const int token = tokens[tile.row];
  const bool is_here = token >= vocabulary_begin && token < vocabulary_end;
  if (adds && !is_here) return;
  const T* from = table + (is_here ? int64_t{token} - vocabulary_begin : 0) * columns;
  T* to = y + tile.row * columns;
  Vector<T, kWidth> values[kForwardUnroll] = {};
#pragma unroll
  for (int u = 0; u < kForwardUnroll; ++u) {
    const int64_t i = tile.VectorAt(u);
    if (is_here && i < vectors) values[u] = LoadConstant<kWidth>(from + i * kWidth);
  }
#pragma unroll
  for (int u = 0; u < kForwardUnroll; ++u) {
    const int64_t i = tile.VectorAt(u);
    if (i >= vectors) break;
    if (adds) {
      Floats<kWidth> sum = Unpack(Load<kWidth>(to + i * kWidth));
      const Floats<kWidth> other = Unpack(values[u]);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) sum[j] += other[j];
      values[u] = Pack<T>(sum);
    }
    Store(values[u], to + i * kWidth);
  }
}

// Keys count from 0 within the slice; tokens of other slices come last, as `slice`.
__global__ void __launch_bounds__(kFlatThreads)
    MakeKeys(int rows, int vocabulary_begin, int vocabulary_end, const int32_t* tokens,
             uint32_t* keys, int32_t* key_rows) {
  const int64_t row = FlatVectorAt(0, 1);
  if (row >= rows) return;
  const int token = tokens[row];
  const bool is_here = token >= vocabulary_begin && token < vocabulary_end;
  keys[row] = static_cast<uint32_t>((is_here ? token : vocabulary_end) - vocabulary_begin);
  key_rows[row] = static_cast<int32_t>(row);
}

// keys, key_rows: (rows), sorted. The block of a piece's first position adds it up, the others have
// nothing to do. A run in one piece is added to dtable; else the piece becomes a row of `sums`, (2
// a segment, columns): the first for the piece at the segment's beginning, the second for one that
// begins later and reaches the segment's end.
template <typename T, int kWidth>
__global__ void __launch_bounds__(kTileThreads)
    AddRuns(int rows, int columns, int chunks, uint32_t slice, const uint32_t* keys,
            const int32_t* key_rows, const T* dy, float* sums, float* dtable) {
  constexpr int kAhead = 8;  // rows on their way at once
  const int64_t first = blockIdx.x / static_cast<unsigned int>(chunks);
  const int chunk = static_cast<int>(blockIdx.x % static_cast<unsigned int>(chunks));
  const uint32_t key = keys[first];
  const int64_t segment = first / kEmbeddingSegment;
  const bool is_segments_first = first == segment * kEmbeddingSegment;
  const bool is_runs_first = first == 0 || keys[first - 1] != key;
  if (key >= slice || !(is_segments_first || is_runs_first)) return;
  const int64_t border = (segment + 1) * kEmbeddingSegment;
  const int64_t end = border < rows ? border : rows;
  const bool is_whole_run = is_runs_first && (end == rows || keys[end] != key);
  const int64_t i = (int64_t{chunk} * blockDim.x + threadIdx.x) * kWidth;
  const bool has_columns = i < columns;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;

  float* sum_at = is_whole_run ? dtable + int64_t{key} * columns + i
                               : sums + (2 * segment + (is_segments_first ? 0 : 1)) * columns + i;
  Floats<kWidth> sum = {};
  if (has_columns && is_whole_run) sum = Unpack(Load<kWidth>(sum_at));
  // A warp reads 32 positions at once, then their rows of dy.
  int run = kWarp;
  for (int64_t begin = first; run == kWarp; begin += kWarp) {
    const int64_t position = begin + lane;
    const bool in_run = position < end && keys[position] == key;
    const int row_here = in_run ? key_rows[position] : 0;
    // Sorted: the piece's positions are the first lanes.
    run = __popc(__ballot_sync(0xffffffffu, in_run));
    for (int r = 0; r < run; r += kAhead) {
      Vector<T, kWidth> gradients[kAhead];
#pragma unroll
      for (int ahead = 0; ahead < kAhead; ++ahead) {
        const int64_t row = __shfl_sync(0xffffffffu, row_here, r + ahead);
        gradients[ahead] = {};
        if (r + ahead < run && has_columns) {
          gradients[ahead] = LoadConstant<kWidth>(dy + row * columns + i);
        }
      }
#pragma unroll
      for (int ahead = 0; ahead < kAhead; ++ahead) {
        if (r + ahead >= run) break;
        const Floats<kWidth> gradient = Unpack(gradients[ahead]);
#pragma unroll
        for (int j = 0; j < kWidth; ++j) sum[j] += gradient[j];
      }
    }
  }
  if (has_columns) Store(Pack<float>(sum), sum_at);
}

// The pieces of a run that was cut are added, in their order, by the block of the segment in which
// the run begins. Only one run can cross a segment's end.
template <int kWidth>
__global__ void __launch_bounds__(kTileThreads)
    AddPieces(int rows, int columns, int chunks, uint32_t slice, const uint32_t* keys,
              const float* sums, float* dtable) {
  const int64_t segment = blockIdx.x / static_cast<unsigned int>(chunks);
  const int chunk = static_cast<int>(blockIdx.x % static_cast<unsigned int>(chunks));
  const int64_t begin = segment * kEmbeddingSegment;
  const int64_t end = begin + kEmbeddingSegment;
  if (end >= rows) return;
  const uint32_t key = keys[end];
  if (key >= slice || keys[end - 1] != key) return;
  const bool fills_segment = keys[begin] == key;
  if (fills_segment && begin > 0 && keys[begin - 1] == key) return;
  const int64_t i = (int64_t{chunk} * blockDim.x + threadIdx.x) * kWidth;
  if (i >= columns) return;

  float* sum_at = dtable + int64_t{key} * columns + i;
  Floats<kWidth> sum = Unpack(Load<kWidth>(sum_at));
  int64_t piece = 2 * segment + (fills_segment ? 0 : 1);
  for (int64_t next = end;; next += kEmbeddingSegment) {
    const Floats<kWidth> part = Unpack(LoadConstant<kWidth>(sums + piece * columns + i));
#pragma unroll
    for (int j = 0; j < kWidth; ++j) sum[j] += part[j];
    if (next >= rows || keys[next] != key) break;
    piece = 2 * (next / kEmbeddingSegment);
  }
  Store(Pack<float>(sum), sum_at);
}

// How many low bits hold every key up to `largest`.
int BitsOf(uint32_t largest) {
  int bits = 1;
  while (bits < 32 && (largest >> bits) != 0) ++bits;
  return bits;
}

}  // namespace

template <typename T>
void EmbeddingForward(int rows, int columns, int vocabulary_begin, int vocabulary_end,
                      const int32_t* tokens, const T* table, bool adds, T* y, Stream& stream) {
  if (rows == 0 || columns == 0) return;
  const bool wide = IsWide<T>(columns, {table, y});
  const TileGeometry g =
      MakeTileGeometry(rows, wide ? columns / kWide<T> : columns, kForwardUnroll);
  Launch(stream, "embedding_forward", g.blocks, dim3(g.threads, g.rows_per_block),
         wide ? Forward<T, kWide<T>> : Forward<T, 1>, rows, columns, g.chunks, vocabulary_begin,
         vocabulary_end, tokens, table, adds, y);
}

size_t EmbeddingWorkspaceBytes(int rows, int columns) {
  return MakeEmbeddingScratch(rows, columns).total_bytes;
}

template <typename T>
void EmbeddingBackward(int rows, int columns, int vocabulary_begin, int vocabulary_end,
                       const int32_t* tokens, const T* dy, float* dtable,
                       const Workspace& workspace, Stream& stream) {
  if (rows == 0 || columns == 0) return;
  const char* op = "embedding_backward";
  const EmbeddingScratch scratch = MakeEmbeddingScratch(rows, columns);
  char* base = workspace.As<char>(scratch.total_bytes);
  auto* keys = reinterpret_cast<uint32_t*>(base);
  auto* key_rows = reinterpret_cast<int32_t*>(base + scratch.array_bytes);
  auto* sorted_keys = reinterpret_cast<uint32_t*>(base + 2 * scratch.array_bytes);
  auto* sorted_rows = reinterpret_cast<int32_t*>(base + 3 * scratch.array_bytes);
  void* sort_scratch = base + 4 * scratch.array_bytes;
  auto* sums = reinterpret_cast<float*>(base + 4 * scratch.array_bytes + scratch.sort_bytes);

  Launch(stream, op, FlatBlocks(rows, 1, 1), dim3(kFlatThreads), MakeKeys, rows, vocabulary_begin,
         vocabulary_end, tokens, keys, key_rows);
  const auto slice = static_cast<uint32_t>(vocabulary_end - vocabulary_begin);
  Queue& queue = stream.queue();
  const auto sort = [&](void* temporary, size_t& bytes) {
    return cub::DeviceRadixSort::SortPairs(temporary, bytes, keys, sorted_keys, key_rows,
                                           sorted_rows, rows, 0, BitsOf(slice), queue.stream());
  };
  size_t sort_bytes = 0;
  const cudaError_t error = sort(nullptr, sort_bytes);
  queue.Report(error, op);
  if (error != cudaSuccess) return;
  CONVENE_CHECK(sort_bytes <= scratch.sort_bytes);
  queue.Report(sort(sort_scratch, sort_bytes), op);

  // Four columns a thread: the float side, read and written, is the heavier one.
  constexpr int kWidth = kWide<float>;
  const bool wide = IsAligned(sizeof(T), kWidth, columns, {dy}) && IsWide<float>(columns, {dtable});
  const RunGeometry g = EmbeddingBackwardGeometry(rows, wide ? columns / kWidth : columns);
  Launch(stream, op, g.blocks, dim3(g.threads), wide ? AddRuns<T, kWidth> : AddRuns<T, 1>, rows,
         columns, g.chunks, slice, static_cast<const uint32_t*>(sorted_keys),
         static_cast<const int32_t*>(sorted_rows), dy, sums, dtable);
  Launch(stream, op, g.segment_blocks, dim3(g.threads), wide ? AddPieces<kWidth> : AddPieces<1>,
         rows, columns, g.chunks, slice, static_cast<const uint32_t*>(sorted_keys),
         static_cast<const float*>(sums), dtable);
}

CONVENE_INSTANTIATE(EmbeddingForward);
CONVENE_INSTANTIATE(EmbeddingBackward);

}  // namespace convene::worker::cuda

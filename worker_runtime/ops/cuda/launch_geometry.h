// The shapes of the kernels' launches (which thread computes which elements), as pure functions of
// the ops' shapes.
//
// A "vector" is one memory access: 16 bytes' worth of elements where every row starts at a multiple
// of 16 bytes, else one element. No function here depends on what a device is doing, so the same
// call always sums in the same order.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "tools/base/rounding.h"
#include "worker_runtime/device/dtype.h"

namespace convene::worker::cuda {

inline constexpr int kAccessBytes = 16;
inline constexpr int kWarp = 32;

template <typename T>
inline constexpr int kWide = kAccessBytes / static_cast<int>(sizeof(T));

// Whether accesses of `width` elements are aligned everywhere: all `arrays` start at a multiple of
// one access, and rows are `row_elements` apart.
inline bool IsAligned(size_t element_bytes, int width, int64_t row_elements,
                      std::initializer_list<const void*> arrays) {
  const uintptr_t access_bytes = element_bytes * static_cast<uintptr_t>(width);
  return row_elements % width == 0 &&
         std::all_of(arrays.begin(), arrays.end(), [access_bytes](const void* array) {
           return reinterpret_cast<uintptr_t>(array) % access_bytes == 0;
         });
}

// The common case: accesses of 16 bytes.
template <typename T>
bool IsWide(int64_t row_elements, std::initializer_list<const void*> arrays) {
  return IsAligned(sizeof(T), kWide<T>, row_elements, arrays);
}

// RMSNorm's forward pass: a row is kept in registers, `vectors` of them in each of `threads`
// threads. A warp takes a row alone as long as it can: then no barrier is needed.
struct RowGeometry {
  int vectors;         // 1, 2, 4 or 8; 0: the row is narrow-accessed or too long, and is read twice
  int threads;         // a row's; a multiple of 32
  int rows_per_block;  // more than 1 only with 32 threads
  int64_t blocks;
};
inline constexpr int kMaxRowThreads = 512;
// A row that is read twice.
constexpr int AnyRowThreads(int columns) {
  return static_cast<int>(std::min<int64_t>(RoundUp(columns, kWarp), kMaxRowThreads));
}
// `width`: the elements of an access.
constexpr RowGeometry RmsNormGeometry(int rows, int columns, int width) {
  constexpr int kMost = 8;
  const int row_vectors = columns / width;
  if (width == 1 || row_vectors > kMost * kMaxRowThreads) {
    return {0, AnyRowThreads(columns), 1, rows};
  }
  int vectors = 1;
  while (vectors < kMost && vectors * kWarp < row_vectors) vectors *= 2;
  const int threads = static_cast<int>(RoundUp(CeilDivide(row_vectors, vectors), kWarp));
  const int rows_per_block = threads == kWarp ? 4 : 1;
  return {vectors, threads, rows_per_block, CeilDivide(rows, rows_per_block)};
}

// RMSNorm's backward pass: a block goes through every blocks-th row with its part of dweight in
// registers, and leaves one partial row of dweight.
struct RowsGeometry {
  int vectors;  // 1, 2 or 4; 0 as above
  int threads;  // a multiple of 32
  int blocks;   // at most RmsNormPartials(rows)
};
// The threads that a multiprocessor runs at once: the kernels' launch bounds promise it, at 64
// registers a thread with one vector, 128 with more.
constexpr int RowsResidentThreads(int vectors) { return vectors <= 1 ? 1024 : 512; }
constexpr int RmsNormPartials(int rows) { return std::min(rows, 640); }
constexpr RowsGeometry RmsNormBackwardGeometry(int rows, int columns, int width,
                                               int multiprocessors) {
  const int row_vectors = columns / width;
  RowsGeometry result = {0, AnyRowThreads(columns), 0};
  if (width > 1 && row_vectors <= 4 * kMaxRowThreads) {
    result.vectors = static_cast<int>(CeilDivide(row_vectors, kMaxRowThreads));
    if (result.vectors == 3) result.vectors = 4;
    result.threads = static_cast<int>(RoundUp(CeilDivide(row_vectors, result.vectors), kWarp));
  }
  result.blocks = std::min(multiprocessors * (RowsResidentThreads(result.vectors) / result.threads),
                           RmsNormPartials(rows));
  return result;
}

// Sums over rows: so many blocks, `chunks` to a row, each leave a part of a partial row. A thread
// has one vector of the columns.
struct ColumnSumGeometry {
  int threads;  // a multiple of 32
  int chunks;
  int partial_rows;
};
inline constexpr int kColumnSumThreads = 256;
constexpr int ColumnSumPartials(int rows) { return std::min(rows, 256); }
constexpr ColumnSumGeometry MakeColumnSumGeometry(int rows, int row_vectors) {
  const int chunks = static_cast<int>(CeilDivide(row_vectors, kColumnSumThreads));
  const int threads = static_cast<int>(RoundUp(CeilDivide(row_vectors, chunks), kWarp));
  return {threads, chunks, ColumnSumPartials(rows)};
}
// Scratch of `sums` sums of each column.
constexpr size_t ColumnSumBytes(int rows, int columns, int sums) {
  return sizeof(float) * static_cast<size_t>(ColumnSumPartials(rows)) * columns * sums;
}

// Rows cut into chunks that need no other thread: each thread moves up to `unroll` vectors of one
// row, `threads` apart. Block b: chunk b % chunks of the rows from b / chunks * rows_per_block.
struct TileGeometry {
  int threads;  // a row's
  int rows_per_block;
  int chunks;
  int64_t blocks;
};
inline constexpr int kTileThreads = 256;
constexpr TileGeometry MakeTileGeometry(int rows, int row_vectors, int unroll) {
  const int chunks = static_cast<int>(CeilDivide(row_vectors, int64_t{kTileThreads} * unroll));
  int threads = static_cast<int>(CeilDivide(row_vectors, int64_t{chunks} * unroll));
  if (threads > kWarp) threads = static_cast<int>(RoundUp(threads, kWarp));
  const int rows_per_block = kTileThreads / threads;
  return {threads, rows_per_block, chunks, CeilDivide(rows, rows_per_block) * chunks};
}

// Flat arrays: each thread moves up to `unroll` vectors, kFlatThreads apart; after the last whole
// vector fewer elements are left than a block has threads.
inline constexpr int kFlatThreads = 256;
constexpr int64_t FlatBlocks(int64_t count, int width, int unroll) {
  return CeilDivide(CeilDivide(count, width), int64_t{kFlatThreads} * unroll);
}

// RoPE: an item is one vector of the lower halves of `heads_per_item` heads, with those of the
// upper halves that turn with it: they share their angles.
struct RopeGeometry {
  int items;           // of a row: vectors of half a head times groups of heads
  int threads;         // a row's; it may have more items than threads
  int rows_per_block;  // more than 1 only when every item has its thread
  int64_t blocks;
};
constexpr RopeGeometry MakeRopeGeometry(int64_t rows, int heads, int half_vectors,
                                        int heads_per_item) {
  const int items = half_vectors * static_cast<int>(CeilDivide(heads, heads_per_item));
  const int threads = std::min(items, kTileThreads);
  const int rows_per_block = kTileThreads / threads;
  return {items, threads, rows_per_block, CeilDivide(rows, rows_per_block)};
}

// Cross-entropy: a row is cut where its 16-byte accesses begin and end, so that odd vocabularies
// are no slower than even ones.
struct RowCut {
  int head;     // single elements before the first vector
  int vectors;  // of 16 bytes
  int tail;     // single elements after the last
};
CONVENE_HOST_DEVICE inline RowCut CutRow(uintptr_t address, int element_bytes, int columns) {
  const int width = kAccessBytes / element_bytes;
  const int past = static_cast<int>(address % kAccessBytes) / element_bytes;
  const int to_boundary = past == 0 ? 0 : width - past;
  const int head = to_boundary < columns ? to_boundary : columns;
  return {head, (columns - head) / width, (columns - head) % width};
}

// A block per row, of so many threads (a multiple of 32).
constexpr int CrossEntropyThreads(int columns, int width) {
  constexpr int kVectorsPerThread = 4;
  return static_cast<int>(std::clamp<int64_t>(
      RoundUp(CeilDivide(columns, int64_t{width} * kVectorsPerThread), kWarp), kWarp, 512));
}

// Statistics and gradient in one kernel: so many blocks that the rows under way fit in an L2 cache.
// Each multiprocessor has 256 KiB of them, a row of 128,256 in bf16: 33 MiB on an H100 with its 50.
constexpr int CrossEntropyAtOnceBlocks(int rows, size_t row_bytes, int multiprocessors) {
  constexpr size_t kBytes = 256 << 10;  // a multiprocessor
  const auto per_multiprocessor = std::clamp<size_t>(kBytes / std::max<size_t>(row_bytes, 1), 1, 4);
  return static_cast<int>(
      std::min<int64_t>(rows, int64_t{multiprocessors} * static_cast<int>(per_multiprocessor)));
}

// Sums in double: this many blocks each leave a partial sum, and one block adds those.
inline constexpr int kSumThreads = 256;
constexpr int CrossEntropyPartials(int rows) {
  return static_cast<int>(std::min<int64_t>(CeilDivide(rows, kSumThreads), 128));
}
// Statistics of a router: a warp has two sums for each expert in shared memory.
inline constexpr int kRouterStatisticsThreads = 1024;
inline constexpr int kRouterStatisticsSums = 8192;
constexpr int RouterStatisticsWarps(int experts) {
  return std::min(kRouterStatisticsThreads / kWarp, kRouterStatisticsSums / (2 * experts));
}
inline constexpr int kSumUnroll = 4;
constexpr int SumOfSquaresPartials(int64_t count) {
  constexpr int64_t kPerBlock = int64_t{kSumThreads} * kSumUnroll * kWide<float>;
  return static_cast<int>(std::min<int64_t>(CeilDivide(count, kPerBlock), 1056));
}

// The embedding's backward pass: a block per row of the sorted tokens and chunk of columns; block
// b: chunk b % chunks of position b / chunks. A run of one token is cut where segments of so many
// positions end: in real text one token in twenty is the same, and one block would walk them all.
inline constexpr int kEmbeddingSegment = 256;
struct RunGeometry {
  int threads;  // a multiple of 32
  int chunks;
  int64_t blocks;
  int64_t segment_blocks;  // of the second pass: one per segment and chunk; none for one segment
};
constexpr int64_t EmbeddingSegments(int rows) { return CeilDivide(rows, kEmbeddingSegment); }
constexpr RunGeometry EmbeddingBackwardGeometry(int rows, int row_vectors) {
  const int chunks = static_cast<int>(CeilDivide(row_vectors, kTileThreads));
  const int threads = static_cast<int>(RoundUp(CeilDivide(row_vectors, chunks), kWarp));
  const int64_t segments = EmbeddingSegments(rows);
  return {threads, chunks, int64_t{rows} * chunks, segments > 1 ? segments * chunks : 0};
}

// Its scratch: the tokens' keys and rows, unsorted and sorted; the scratch of cub's radix sort
// (checked against cub's own answer at every call); and the sums of runs that were cut, at most two
// a segment: the run that comes into it and the run that leaves it.
struct EmbeddingScratch {
  size_t array_bytes;  // of each of the four
  size_t sort_bytes;
  size_t sum_bytes;
  size_t total_bytes;
};
constexpr EmbeddingScratch MakeEmbeddingScratch(int rows, int columns) {
  const size_t array_bytes = static_cast<size_t>(RoundUp(int64_t{rows} * 4, 256));
  const size_t sort_bytes = 4 * array_bytes + (size_t{64} << 10);
  const int64_t segments = EmbeddingSegments(rows);
  const size_t sum_bytes =
      segments > 1 ? static_cast<size_t>(2 * segments * columns) * sizeof(float) : 0;
  return {array_bytes, sort_bytes, sum_bytes, 4 * array_bytes + sort_bytes + sum_bytes};
}

}  // namespace convene::worker::cuda

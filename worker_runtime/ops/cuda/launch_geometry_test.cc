#include "worker_runtime/ops/cuda/launch_geometry.h"

#include <catch2/catch.hpp>
#include <cstdint>
#include <vector>

namespace convene::worker::cuda {
namespace {

constexpr int kMultiprocessors = 132;
const std::vector<int> kWidths = {1,    2,    7,    8,    31,    32,    33,    64,    96,   130,
                                  256,  257,  384,  500,  512,   1000,  1024,  1376,  2048, 2049,
                                  4096, 4097, 8192, 9999, 16032, 32768, 65536, 128256};
const std::vector<int> kRows = {1, 2, 3, 5, 132, 640, 641, 8192, 1000003};

TEST_CASE("accesses are wide only when every row of every array starts at a multiple of 16 bytes") {
  alignas(16) static char memory[64];
  CHECK(IsWide<float>(4, {memory, memory + 16}));
  CHECK(IsWide<float>(8, {memory, nullptr}));  // an array that is not there
  CHECK_FALSE(IsWide<float>(6, {memory}));
  CHECK_FALSE(IsWide<float>(8, {memory, memory + 4}));
  CHECK(IsWide<BFloat16>(8, {memory}));
  CHECK_FALSE(IsWide<BFloat16>(4, {memory}));
  CHECK(IsAligned(sizeof(BFloat16), 4, 12, {memory + 8}));
  CHECK_FALSE(IsAligned(sizeof(BFloat16), 4, 12, {memory + 2}));
}

TEST_CASE("RMSNorm's threads cover every row, and a row that fits is kept in registers") {
  for (const int width : {1, 4, 8}) {
    for (const int vectors : kWidths) {
      for (const int rows : kRows) {
        CAPTURE(width, vectors, rows);
        const RowGeometry g = RmsNormGeometry(rows, vectors * width, width);
        CHECK(g.threads % kWarp == 0);
        CHECK(g.threads <= kMaxRowThreads);
        CHECK(g.blocks * g.rows_per_block >= rows);
        CHECK((g.blocks - 1) * g.rows_per_block < rows);
        CHECK((g.rows_per_block == 1 || g.threads == kWarp));
        const bool fits = width > 1 && vectors <= 8 * kMaxRowThreads;
        CHECK((g.vectors > 0) == fits);
        if (fits) {
          CHECK(g.vectors * g.threads >= vectors);
          CHECK((g.vectors & (g.vectors - 1)) == 0);
          CHECK(g.vectors <= 8);
        }
      }
    }
  }
}

TEST_CASE("RMSNorm's backward pass leaves no more partial rows than its scratch holds") {
  for (const int width : {1, 4, 8}) {
    for (const int vectors : kWidths) {
      for (const int rows : kRows) {
        for (const int multiprocessors : {1, 46, kMultiprocessors, 200}) {
          CAPTURE(width, vectors, rows, multiprocessors);
          const RowsGeometry g =
              RmsNormBackwardGeometry(rows, vectors * width, width, multiprocessors);
          CHECK(g.blocks >= 1);
          CHECK(g.blocks <= RmsNormPartials(rows));
          CHECK(g.threads % kWarp == 0);
          CHECK(g.threads <= kMaxRowThreads);
          CHECK((g.vectors == 0 || g.vectors == 1 || g.vectors == 2 || g.vectors == 4));
          if (g.vectors > 0) CHECK(g.vectors * g.threads >= vectors);
          CHECK((g.vectors > 0) == (width > 1 && vectors <= 4 * kMaxRowThreads));
        }
      }
    }
  }
}

TEST_CASE("tiles cover every vector of every row once, and fill their blocks") {
  for (const int unroll : {1, 2, 4}) {
    for (const int vectors : kWidths) {
      for (const int rows : kRows) {
        CAPTURE(unroll, vectors, rows);
        const TileGeometry g = MakeTileGeometry(rows, vectors, unroll);
        CHECK(g.threads * g.rows_per_block <= kTileThreads);
        CHECK(2 * g.threads * g.rows_per_block > kTileThreads);
        CHECK(int64_t{g.chunks} * g.threads * unroll >= vectors);
        CHECK(g.blocks % g.chunks == 0);
        const int64_t row_blocks = g.blocks / g.chunks;
        CHECK(row_blocks * g.rows_per_block >= rows);
        CHECK((row_blocks - 1) * g.rows_per_block < rows);
      }
    }
  }
}

TEST_CASE("flat blocks cover every element, the rest after the last vector included") {
  for (const int width : {1, 4, 8}) {
    for (const int64_t count : {int64_t{1}, int64_t{3}, int64_t{8}, int64_t{1023}, int64_t{8192},
                                int64_t{8193}, int64_t{1} << 33}) {
      CAPTURE(width, count);
      const int64_t blocks = FlatBlocks(count, width, 4);
      CHECK(blocks * kFlatThreads * 4 * width >= count);
      CHECK((blocks - 1) * kFlatThreads * 4 * width < count);
      CHECK(count % width <= kFlatThreads);
    }
  }
  CHECK(FlatBlocks(0, 4, 4) == 0);
}

TEST_CASE("RoPE gives every vector of every group of heads one thread's turn") {
  for (const int heads : {1, 3, 4, 40, 140}) {
    for (const int half_vectors : {1, 3, 4, 8, 64}) {
      for (const int64_t rows : {int64_t{1}, int64_t{7}, int64_t{8192}}) {
        CAPTURE(heads, half_vectors, rows);
        const RopeGeometry g = MakeRopeGeometry(rows, heads, half_vectors, 4);
        CHECK(g.items == half_vectors * ((heads + 3) / 4));
        CHECK(g.threads * g.rows_per_block <= kTileThreads);
        CHECK((g.threads == g.items || g.rows_per_block == 1));
        CHECK(g.blocks * g.rows_per_block >= rows);
        CHECK((g.blocks - 1) * g.rows_per_block < rows);
      }
    }
  }
}

TEST_CASE("a row is cut at its multiples of 16 bytes, whatever its address and length") {
  for (const int element_bytes : {2, 4}) {
    for (int past = 0; past < kAccessBytes; past += element_bytes) {
      for (int columns = 0; columns < 70; ++columns) {
        CAPTURE(element_bytes, past, columns);
        const RowCut cut = CutRow(0x1000 + static_cast<uintptr_t>(past), element_bytes, columns);
        const int width = kAccessBytes / element_bytes;
        CHECK(cut.head + cut.vectors * width + cut.tail == columns);
        CHECK(cut.head >= 0);
        CHECK(cut.head < width);
        CHECK(cut.tail >= 0);
        CHECK(cut.tail < width);
        if (cut.vectors > 0) CHECK((past + cut.head * element_bytes) % kAccessBytes == 0);
      }
    }
  }
}

TEST_CASE("cross-entropy's blocks are whole warps that outnumber a row's single elements") {
  for (const int width : {4, 8}) {
    for (const int columns : kWidths) {
      CAPTURE(width, columns);
      const int threads = CrossEntropyThreads(columns, width);
      CHECK(threads % kWarp == 0);
      CHECK(threads >= width);
      CHECK(threads <= 512);
    }
  }
  CHECK(CrossEntropyThreads(0, 8) == kWarp);  // an empty slice still writes its statistics
}

TEST_CASE("cross-entropy at once has as many blocks as keep their rows in the cache") {
  CHECK(CrossEntropyAtOnceBlocks(8192, 2 * 128256, 132) == 132);
  CHECK(CrossEntropyAtOnceBlocks(8192, 4 * 128256, 132) == 132);  // a row alone is more
  CHECK(CrossEntropyAtOnceBlocks(8192, 2 * 50257, 132) == 2 * 132);
  CHECK(CrossEntropyAtOnceBlocks(8192, 2 * 256, 132) == 4 * 132);
  CHECK(CrossEntropyAtOnceBlocks(100, 2 * 128256, 132) == 100);
  CHECK(CrossEntropyAtOnceBlocks(0, 0, 132) == 0);
}

TEST_CASE("the number of partial sums depends on the size alone, and has a limit") {
  CHECK(RouterStatisticsWarps(1) == 32);
  CHECK(RouterStatisticsWarps(256) == 16);
  CHECK(RouterStatisticsWarps(512) == 8);
  CHECK(SumOfSquaresPartials(0) == 0);
  CHECK(SumOfSquaresPartials(64) == 1);
  CHECK(SumOfSquaresPartials(int64_t{1} << 40) == 1056);
  CHECK(CrossEntropyPartials(1) == 1);
  CHECK(CrossEntropyPartials(257) == 2);
  CHECK(CrossEntropyPartials(2000000000) == 128);
}

TEST_CASE("the embedding's backward pass has a thread for every vector of every sorted position") {
  for (const int vectors : kWidths) {
    for (const int rows : kRows) {
      CAPTURE(vectors, rows);
      const RunGeometry g = EmbeddingBackwardGeometry(rows, vectors);
      CHECK(g.threads % kWarp == 0);
      CHECK(g.threads <= kTileThreads);
      CHECK(g.threads * g.chunks >= vectors);
      CHECK(g.threads * (g.chunks - 1) < vectors);
      CHECK(g.blocks == int64_t{rows} * g.chunks);
      const int64_t segments = CeilDivide(rows, kEmbeddingSegment);
      CHECK(g.segment_blocks == (segments > 1 ? segments * g.chunks : 0));
      const int columns = 4 * vectors;
      const EmbeddingScratch scratch = MakeEmbeddingScratch(rows, columns);
      CHECK(scratch.array_bytes % 256 == 0);
      CHECK(scratch.sort_bytes % 256 == 0);  // so the sums start at a multiple of 16
      CHECK(scratch.array_bytes >= size_t{4} * rows);
      CHECK(static_cast<int64_t>(scratch.sum_bytes) == (segments > 1 ? 8 * segments * columns : 0));
      CHECK(scratch.total_bytes ==
            4 * scratch.array_bytes + scratch.sort_bytes + scratch.sum_bytes);
    }
  }
}

}  // namespace
}  // namespace convene::worker::cuda

#include "worker_runtime/ops/cpu/tiled_matmul.h"

#include <algorithm>
#include <cstddef>
#include <dnnl.hpp>
#include <vector>

#include "tools/base/rounding.h"
#include "worker_runtime/ops/cpu/primitive_matmul.h"
#include "worker_runtime/ops/cpu/thread_count.h"

namespace convene::worker::cpu {
namespace {

// Larger tiles gave no more GFLOP/s (128 x 256 to 512 x 512; two threads of an AMD EPYC with AVX2,
// a 125M Llama's products), and leave threads without work.
constexpr int kTileRows = 128;
constexpr int kTileColumns = 256;
// The terms of a sum over k that a copy of a holds.
constexpr int kCopiedTerms = 512;
// Tiles begin at whole cache lines.
constexpr int kLine = 16;

// `length` > 0 cut into equal pieces of at most `longest`, but for the last: multiples of `line`.
constexpr int PieceOf(int length, int longest, int line) {
  return static_cast<int>(RoundUp(CeilDivide(length, CeilDivide(length, longest)), line));
}

// A tile's columns of a transposed a are first copied to stand side by side: sgemm walks down them,
// and rows a power of two apart fall on the same few sets of the cache (32 GFLOP/s against 68).
void CopiedProduct(const ProductShape& tile, const float* a, const float* b, float beta, float* c) {
  thread_local std::vector<float> copy;
  ProductShape slice = tile;
  slice.lda = tile.m + kLine;
  copy.resize(std::max(copy.size(), static_cast<size_t>(slice.lda) * kCopiedTerms));
  const ptrdiff_t b_step = tile.transpose_b == Transpose::kYes ? 1 : tile.ldb;
  for (int first = 0; first < tile.k; first += kCopiedTerms) {
    slice.k = std::min(kCopiedTerms, tile.k - first);
    for (int i = 0; i < slice.k; ++i) {
      std::copy_n(a + static_cast<ptrdiff_t>(first + i) * tile.lda, tile.m,
                  &copy[static_cast<size_t>(i) * slice.lda]);
    }
    Sgemm(slice, copy.data(), b + first * b_step, first == 0 ? beta : 1.0f, c);
  }
}

}  // namespace

bool NeedsTiles() {
  static const bool needs = [] {
    // The values of cpu_isa are sets of bits: each generation holds the bits of those before it.
    const auto has = static_cast<unsigned>(dnnl::get_effective_cpu_isa());
    const auto wide = static_cast<unsigned>(dnnl::cpu_isa::avx512_core);
    return (has & wide) != wide;
  }();
  return needs;
}

ProductTiles::ProductTiles(const ProductShape& shape, int rows_most, int columns_most, int line)
    : shape_(shape),
      rows_(PieceOf(std::max(shape.m, 1), rows_most, line)),
      columns_(PieceOf(std::max(shape.n, 1), columns_most, kLine)),
      down_(CeilDivide(shape.m, rows_)),
      count_(down_ * CeilDivide(shape.n, columns_)) {}

ProductShape ProductTiles::ShapeAt(int row, int column) const {
  ProductShape tile = shape_;
  tile.m = std::min(rows_, shape_.m - row);
  tile.n = std::min(columns_, shape_.n - column);
  return tile;
}

void MultiplyTile(const ProductTile<float, float>& tile, float beta) {
  const ScopedThreadCount one(1);
  (tile.shape.transpose_a == Transpose::kYes ? CopiedProduct : Sgemm)(tile.shape, tile.a, tile.b,
                                                                      beta, tile.c);
}

void TiledMatMul(const ProductShape& shape, const float* a, const float* b, float beta, float* c) {
  const ProductTiles tiles(shape, kTileRows, kTileColumns, kLine);
  const double multiply_adds = static_cast<double>(shape.m) * shape.n * shape.k;
  ForPieces(kNanosecondsOfFloat * multiply_adds, tiles.count(),
            [&](int64_t index) { MultiplyTile(tiles.At(index, a, b, c), beta); });
}

}  // namespace convene::worker::cpu

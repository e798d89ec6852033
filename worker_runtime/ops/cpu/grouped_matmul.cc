// Each group's product is cut into tiles, and threads share the tiles of all groups. Numbers of
// rows change with every call: sgemm takes any, and primitives, which oneDNN makes for one shape,
// get them rounded up, of which there are few.
#include "worker_runtime/ops/grouped_matmul.h"

#include <algorithm>
#include <cstddef>
#include <type_traits>
#include <vector>

#include "tools/base/check.h"
#include "tools/base/rounding.h"
#include "worker_runtime/ops/cpu/bf16_matmul.h"
#include "worker_runtime/ops/cpu/cpu_ops.h"
#include "worker_runtime/ops/cpu/few_rows_matmul.h"
#include "worker_runtime/ops/cpu/simd.h"
#include "worker_runtime/ops/cpu/thread_count.h"
#include "worker_runtime/ops/cpu/tiled_matmul.h"
#include "worker_runtime/ops/instantiate.h"

namespace convene::worker::cpu {
namespace {

// Rows of a primitive's shape come in multiples of this.
constexpr int kRowStep = 32;
// Tiles of whole rows: there oneDNN takes its better kernel (199 GFLOP/s, by 512 of 1024 columns
// 183; one core of an AMD EPYC with AVX512-BF16, k 384), and sgemm copies b less often.
constexpr int kTileRows = 128;
constexpr int kTileColumns = 1024;
// Of a weight's gradient, and the rows of a group that are multiplied at once.
constexpr int kGradientTileRows = 256;
constexpr int kGradientTileColumns = 512;
constexpr int kGradientDepth = 256;

template <typename From, typename To>
CONVENE_CPU_CLONES void ConvertRow(int count, const From* x, To* y) {
#pragma omp simd
  for (int i = 0; i < count; ++i) Narrow(Widen(x[i]), &y[i]);
}

template <typename From, typename To>
void ConvertRows(int rows, int columns, const From* x, ptrdiff_t x_stride, To* y,
                 ptrdiff_t y_stride) {
  for (int i = 0; i < rows; ++i) ConvertRow(columns, x + i * x_stride, y + i * y_stride);
}

// Memory of one thread. Grows to the largest tile and stays.
template <typename T>
class Room {
 public:
  T* AtLeast(int64_t count) {
    if (numbers_.size() < static_cast<size_t>(count)) numbers_.resize(count);
    return numbers_.data();
  }
  // Rows of a wider matrix, and rows of zeros up to `padded_rows`.
  template <typename From>
  const T* Copy(int rows, int padded_rows, int columns, const From* x, ptrdiff_t stride) {
    T* const copy = AtLeast(int64_t{padded_rows} * columns);
    ConvertRows(rows, columns, x, stride, copy, columns);
    std::fill(copy + int64_t{rows} * columns, copy + int64_t{padded_rows} * columns, T(0.0f));
    return copy;
  }

 private:
  std::vector<T> numbers_;
};

// On a processor that does not multiply bf16: in fp32.
template <typename Out>
void MultiplyWidened(const ProductTile<BFloat16, Out>& tile, float beta) {
  thread_local Room<float> a, b, c;
  const ProductShape& s = tile.shape;
  const auto widen = [](Transpose transpose, int rows, int columns, const BFloat16* x, int stride,
                        Room<float>& room) {
    if (transpose == Transpose::kYes) std::swap(rows, columns);
    return room.Copy(rows, rows, columns, x, stride);
  };
  ProductTile<float, float> wide = {
      .shape = DenseProduct(s.transpose_a, s.transpose_b, s.m, s.n, s.k),
      .a = widen(s.transpose_a, s.m, s.k, tile.a, s.lda, a),
      .b = widen(s.transpose_b, s.k, s.n, tile.b, s.ldb, b),
      .c = nullptr};
  if constexpr (std::is_same_v<Out, float>) {
    wide.shape.ldc = s.ldc;
    wide.c = tile.c;
    MultiplyTile(wide, beta);
  } else {
    wide.c = c.AtLeast(int64_t{s.m} * s.n);
    if (beta != 0) c.Copy(s.m, s.m, s.n, tile.c, s.ldc);
    MultiplyTile(wide, beta);
    ConvertRows(s.m, s.n, wide.c, s.n, tile.c, s.ldc);
  }
}

// Rows of activations by a group's matrix.
void MultiplyTile(const ProductTile<BFloat16, BFloat16>& tile, float beta) {
  thread_local Room<BFloat16> a, c;
  if (!HasBFloat16Products()) return MultiplyWidened(tile, beta);
  const ScopedThreadCount one(1);
  ProductShape shape = tile.shape;
  const int rows = shape.m;
  shape.m = static_cast<int>(RoundUp(rows, kRowStep));
  if (rows == shape.m) return PrimitiveMatMul(shape, tile.a, tile.b, beta, tile.c);
  BFloat16* const product = c.AtLeast(int64_t{shape.m} * shape.n);
  if (beta != 0) c.Copy(rows, shape.m, shape.n, tile.c, shape.ldc);
  const BFloat16* const padded = a.Copy(rows, shape.m, shape.k, tile.a, shape.lda);
  shape.lda = shape.k;
  shape.ldc = shape.n;
  PrimitiveMatMul(shape, padded, tile.b, beta, product);
  ConvertRows(rows, shape.n, product, shape.n, tile.c, tile.shape.ldc);
}

// A group's rows of activations by its rows of gradients.
void MultiplyTile(const ProductTile<BFloat16, float>& tile, float beta) {
  thread_local Room<BFloat16> a, b;
  if (!HasBFloat16Products()) return MultiplyWidened(tile, beta);
  const ScopedThreadCount one(1);
  for (int first = 0; first < tile.shape.k; first += kGradientDepth) {
    ProductShape slice = tile.shape;
    const int rows = std::min(kGradientDepth, slice.k - first);
    const BFloat16* slice_a = tile.a + static_cast<ptrdiff_t>(first) * slice.lda;
    const BFloat16* slice_b = tile.b + static_cast<ptrdiff_t>(first) * slice.ldb;
    slice.k = static_cast<int>(RoundUp(rows, kRowStep));
    if (slice.k != rows) {
      slice_a = a.Copy(rows, slice.k, slice.m, slice_a, slice.lda);
      slice_b = b.Copy(rows, slice.k, slice.n, slice_b, slice.ldb);
      slice.lda = slice.m;
      slice.ldb = slice.n;
    }
    PrimitiveMatMul(slice, slice_a, slice_b, first == 0 ? beta : 1.0f, tile.c);
  }
}

template <typename T>
double Nanoseconds(double rows, double n, double k) {
  const bool is_fast = std::is_same_v<T, BFloat16> && HasBFloat16Products();
  return (is_fast ? kNanosecondsOfBFloat16 : kNanosecondsOfFloat) * rows * n * k;
}

}  // namespace

template <typename T>
void GroupedMatMul(Transpose transpose_b, absl::Span<const int32_t> begin, int n, int k, const T* a,
                   const T* b, float beta, T* c, Stream& /*stream*/) {
  CONVENE_CHECK(!begin.empty() && k > 0);
  const auto tiles_of = [=](size_t group) {
    const int rows = begin[group + 1] - begin[group];
    return ProductTiles(DenseProduct(Transpose::kNo, transpose_b, rows, n, k), kTileRows,
                        kTileColumns, kRowStep);
  };
  int64_t count = 0;
  for (size_t group = 0; group + 1 < begin.size(); ++group) count += tiles_of(group).count();
  ForPieces(Nanoseconds<T>(begin.back() - begin.front(), n, k), count, [=](int64_t index) {
    size_t group = 0;
    for (; index >= tiles_of(group).count(); ++group) index -= tiles_of(group).count();
    const ptrdiff_t first = begin[group];
    const ProductTile<T, T> tile = tiles_of(group).At(
        index, a + first * k, b + static_cast<ptrdiff_t>(group) * n * k, c + first * n);
    if (!HasFewRows(tile.shape)) return MultiplyTile(tile, beta);
    MultiplyFewRows(tile.shape, tile.a, tile.b, beta, tile.c);
  });
}

template <typename T>
void GroupedWeightGradient(absl::Span<const int32_t> begin, int m, int n, const T* a, const T* b,
                           float beta, float* c, Stream& /*stream*/) {
  CONVENE_CHECK(!begin.empty());
  const auto groups = static_cast<int64_t>(begin.size()) - 1;
  const auto tiles_of = [=](int64_t group) {
    const int rows = begin[group + 1] - begin[group];
    return ProductTiles(DenseProduct(Transpose::kYes, Transpose::kNo, m, n, rows),
                        kGradientTileRows, kGradientTileColumns, kRowStep);
  };
  if (groups == 0) return;
  // Tile after tile, each of all groups: so threads get the same share of every group, however
  // unlike the groups are.
  ForPieces(Nanoseconds<T>(begin.back() - begin.front(), m, n), groups * tiles_of(0).count(),
            [=](int64_t index) {
              const int64_t group = index % groups;
              const ptrdiff_t first = begin[group];
              const ProductTile<T, float> tile =
                  tiles_of(group).At(index / groups, a + first * m, b + first * n,
                                     c + static_cast<ptrdiff_t>(group) * m * n);
              if (tile.shape.k > 0) return MultiplyTile(tile, beta);
              for (int row = 0; beta == 0 && row < tile.shape.m; ++row) {
                std::fill_n(tile.c + static_cast<ptrdiff_t>(row) * tile.shape.ldc, tile.shape.n,
                            0.0f);
              }
            });
}

CONVENE_INSTANTIATE(GroupedMatMul);
CONVENE_INSTANTIATE(GroupedWeightGradient);

}  // namespace convene::worker::cpu

#include "worker_runtime/ops/cpu/bf16_matmul.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <dnnl.hpp>
#include <type_traits>
#include <vector>

#include "worker_runtime/ops/cpu/float_matmul.h"
#include "worker_runtime/ops/cpu/simd.h"
#include "worker_runtime/ops/cpu/thread_count.h"
#include "worker_runtime/ops/cpu/tiled_matmul.h"
#include "worker_runtime/ops/instantiate.h"

namespace convene::worker::cpu {
namespace {

// The elements of one operand's block; in fp32 they take 8 MiB.
constexpr int64_t kBlockElements = int64_t{1} << 21;
constexpr int kBlockRowsMin = 64;
// With AMX, of a product's result. By one thread such tiles have 0.7 to 1.0 of the whole product's
// speed, as have 256 x 1024 and 512 x 512 (an Intel Xeon whose clock varied by two); larger tiles
// leave threads without work.
constexpr int kTileRows = 256;
constexpr int kTileColumns = 512;
constexpr int kTileLine = 32;

template <typename From, typename To>
CONVENE_CPU_CLONES void ConvertRow(int64_t count, const From* x, To* y) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) Narrow(Widen(x[i]), &y[i]);
}
CONVENE_CPU_CLONES void ConvertRow(int64_t count, Float8Numbers x, float* y) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) y[i] = x.of_code[x.codes[i]];
}

// rows x columns, rows `from_stride` and `to_stride` elements apart.
template <typename From, typename To>
void ConvertBlock(int rows, int columns, From from, ptrdiff_t from_stride, To* to,
                  ptrdiff_t to_stride) {
  constexpr double kNanoseconds = 0.06;  // an element
  ForPieces(kNanoseconds * rows * columns, rows, [=](int64_t row) {
    ConvertRow(columns, from + row * from_stride, to + row * to_stride);
  });
}

// Grows to the largest block and stays: no allocation in a steady state.
struct Blocks {
  std::vector<float> a, b, c;

  static float* AtLeast(std::vector<float>& block, int64_t count) {
    if (block.size() < static_cast<size_t>(count)) block.resize(count);
    return block.data();
  }
};

// The columns [begin, begin + count) of op(x) (k, n) or, for the left operand, the rows of op(x)
// (m, k): `contiguous` when they are whole rows of k in memory, else columns of a matrix of `width`
// columns. Returns the leading dimension of what is now in `block`.
template <typename From>
int WidenBlock(bool contiguous, int begin, int count, int k, int width, From x, float* block) {
  if (contiguous) {
    ConvertBlock(count, k, x + static_cast<ptrdiff_t>(begin) * k, k, block, k);
    return k;
  }
  ConvertBlock(k, count, x + begin, width, block, count);
  return count;
}

template <typename In, typename Out>
void WidenThenMultiply(const ProductShape& shape, In a, In b, float beta, Out* c) {
  thread_local Blocks blocks;
  const int m = shape.m;
  const int n = shape.n;
  const int k = shape.k;
  const auto rows_of = [](int64_t width, int count) {
    return static_cast<int>(std::clamp<int64_t>(kBlockElements / std::max<int64_t>(1, width),
                                                std::min(kBlockRowsMin, count), count));
  };
  const int n_block = rows_of(k, n);
  const int m_block = rows_of(std::max(k, n_block), m);
  float* a_block = Blocks::AtLeast(blocks.a, int64_t{m_block} * k);
  float* b_block = Blocks::AtLeast(blocks.b, int64_t{n_block} * k);
  for (int j = 0; j < n; j += n_block) {
    ProductShape block = shape;
    block.n = std::min(n_block, n - j);
    block.ldb = WidenBlock(shape.transpose_b == Transpose::kYes, j, block.n, k, n, b, b_block);
    for (int i = 0; i < m; i += m_block) {
      block.m = std::min(m_block, m - i);
      block.lda = WidenBlock(shape.transpose_a == Transpose::kNo, i, block.m, k, m, a, a_block);
      Out* target = c + static_cast<ptrdiff_t>(i) * n + j;
      if constexpr (std::is_same_v<Out, float>) {
        FloatMatMul(block, a_block, b_block, beta, target);
      } else {
        float* const product = Blocks::AtLeast(blocks.c, int64_t{m_block} * n_block);
        block.ldc = block.n;
        if (beta != 0) ConvertBlock<const Out*>(block.m, block.n, target, n, product, block.ldc);
        FloatMatMul(block, a_block, b_block, beta, product);
        ConvertBlock<const float*>(block.m, block.n, product, block.ldc, target, n);
      }
    }
  }
}

}  // namespace

bool HasBFloat16Products() {
  static const bool has = [] {
    const dnnl::cpu_isa isa = dnnl::get_effective_cpu_isa();
    return isa == dnnl::cpu_isa::avx512_core_bf16 || isa == dnnl::cpu_isa::avx512_core_amx;
  }();
  return has;
}

template <typename Out>
void BFloat16MatMul(const ProductShape& shape, const BFloat16* a, const BFloat16* b, float beta,
                    Out* c) {
  if (!MultipliesByAmx()) {
    const LibraryTeam team = ProductTeam(shape, kNanosecondsOfBFloat16);
    return PrimitiveMatMul(shape, a, b, beta, c);
  }
  const ProductTiles tiles(shape, kTileRows, kTileColumns, kTileLine);
  const double multiply_adds = static_cast<double>(shape.m) * shape.n * shape.k;
  ForPieces(kNanosecondsOfBFloat16 * multiply_adds, tiles.count(), [&](int64_t index) {
    const ScopedThreadCount one(1);
    const ProductTile<BFloat16, Out> tile = tiles.At(index, a, b, c);
    PrimitiveMatMul(tile.shape, tile.a, tile.b, beta, tile.c);
  });
}

template <typename Out>
void WidenedMatMul(const ProductShape& shape, const BFloat16* a, const BFloat16* b, float beta,
                   Out* c) {
  WidenThenMultiply(shape, a, b, beta, c);
}

template <typename Out>
void WidenedMatMul(const ProductShape& shape, Float8Numbers a, Float8Numbers b, float beta,
                   Out* c) {
  WidenThenMultiply(shape, a, b, beta, c);
}

CONVENE_INSTANTIATE(BFloat16MatMul);
template void WidenedMatMul(const ProductShape&, const BFloat16*, const BFloat16*, float, float*);
template void WidenedMatMul(const ProductShape&, const BFloat16*, const BFloat16*, float,
                            BFloat16*);
template void WidenedMatMul(const ProductShape&, Float8Numbers, Float8Numbers, float, float*);
template void WidenedMatMul(const ProductShape&, Float8Numbers, Float8Numbers, float, BFloat16*);

}  // namespace convene::worker::cpu

#include "worker_runtime/ops/cpu/block_product.h"

namespace convene::worker::cpu {
namespace {

// kRows x (kVectors * kFloats) elements of c, held in registers while k runs.
template <int kFloats, int kRows, int kVectors>
CONVENE_CPU_INLINE void Tile(int k, const float* a, ptrdiff_t a_row_stride,
                             ptrdiff_t a_column_stride, const float* b, ptrdiff_t b_stride,
                             bool accumulate, float* c, ptrdiff_t c_stride) {
  Register<kFloats> sums[kRows][kVectors];
#pragma GCC unroll 16
  for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) {
      sums[row][v] = Register<kFloats>{};
      if (accumulate) Load(c + row * c_stride + v * kFloats, &sums[row][v]);
    }
  }
  for (int i = 0; i < k; ++i) {
    Register<kFloats> b_row[kVectors];
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) Load(b + v * kFloats, &b_row[v]);
#pragma GCC unroll 16
    for (int row = 0; row < kRows; ++row) {
      const float factor = a[row * a_row_stride];
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) sums[row][v] += factor * b_row[v];
    }
    a += a_column_stride;
    b += b_stride;
  }
#pragma GCC unroll 16
  for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) {
      Store(sums[row][v], c + row * c_stride + v * kFloats);
    }
  }
}

// All rows of a strip of kVectors vectors of columns.
template <int kFloats, int kRows, int kVectors>
CONVENE_CPU_INLINE void Strip(int m, int k, const BlockView& a, const float* b, ptrdiff_t b_stride,
                              bool accumulate, float* c, ptrdiff_t c_stride) {
  int row = 0;
  for (; row + kRows <= m; row += kRows) {
    Tile<kFloats, kRows, kVectors>(k, a.data + row * a.row_stride, a.row_stride, a.column_stride, b,
                                   b_stride, accumulate, c + row * c_stride, c_stride);
  }
  for (; row < m; ++row) {
    Tile<kFloats, 1, kVectors>(k, a.data + row * a.row_stride, a.row_stride, a.column_stride, b,
                               b_stride, accumulate, c + row * c_stride, c_stride);
  }
}

template <int kFloats, int kRows, int kVectors>
CONVENE_CPU_INLINE void Product(int m, int n, int k, const BlockView& a, const float* b,
                                ptrdiff_t b_stride, bool accumulate, float* c, ptrdiff_t c_stride) {
  constexpr int kWide = kVectors * kFloats;
  static_assert(kVectorFloats % kFloats == 0);
  int column = 0;
  for (; column + kWide <= n; column += kWide) {
    Strip<kFloats, kRows, kVectors>(m, k, a, b + column, b_stride, accumulate, c + column,
                                    c_stride);
  }
  for (; column < n; column += kFloats) {
    Strip<kFloats, kRows, 1>(m, k, a, b + column, b_stride, accumulate, c + column, c_stride);
  }
}

using ProductFunction = void (*)(int, int, int, const BlockView&, const float*, ptrdiff_t, bool,
                                 float*, ptrdiff_t);

// The tile is what the machine's registers hold, so the clones differ in more than the
// instructions.
#if defined(__x86_64__)
// 24 of 32 registers of 16 floats.
__attribute__((target("avx512f"))) void ProductAvx512(int m, int n, int k, const BlockView& a,
                                                      const float* b, ptrdiff_t b_stride,
                                                      bool accumulate, float* c,
                                                      ptrdiff_t c_stride) {
  Product<16, 6, 4>(m, n, k, a, b, b_stride, accumulate, c, c_stride);
}

// 12 of 16 registers of 8 floats.
__attribute__((target("avx2,fma"))) void ProductAvx2(int m, int n, int k, const BlockView& a,
                                                     const float* b, ptrdiff_t b_stride,
                                                     bool accumulate, float* c,
                                                     ptrdiff_t c_stride) {
  Product<8, 6, 2>(m, n, k, a, b, b_stride, accumulate, c, c_stride);
}
#endif

void ProductDefault(int m, int n, int k, const BlockView& a, const float* b, ptrdiff_t b_stride,
                    bool accumulate, float* c, ptrdiff_t c_stride) {
  Product<4, 2, 4>(m, n, k, a, b, b_stride, accumulate, c, c_stride);
}

ProductFunction FastestProduct() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f")) return ProductAvx512;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return ProductAvx2;
#endif
  return ProductDefault;
}

}  // namespace

void BlockProduct(int m, int n, int k, const BlockView& a, const float* b, ptrdiff_t b_stride,
                  bool accumulate, float* c, ptrdiff_t c_stride) {
  static const ProductFunction product = FastestProduct();
  product(m, n, k, a, b, b_stride, accumulate, c, c_stride);
}

}  // namespace convene::worker::cpu

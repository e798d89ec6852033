#include "worker_runtime/ops/cpu/few_rows_matmul.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "tools/base/rounding.h"
#include "worker_runtime/ops/cpu/simd.h"
#include "worker_runtime/ops/cpu/thread_count.h"
#include "worker_runtime/ops/instantiate.h"

namespace convene::worker::cpu {
namespace {

// With more rows a product computes longer than it reads, and sgemm's packing pays: 93 ms against
// 106 by 16 rows, 52 against 83 by 8 (the fp32 products of a 125M Llama, one core of an AMD EPYC
// with AVX2).
constexpr int kMostRows = 16;
// Columns of c that one thread makes at once.
constexpr int kPieceColumns = 48;
// Sums of one column by one row that go on side by side: more than one add is on its way.
constexpr int kSums = 2;

template <int kLanes>
using Words __attribute__((vector_size(kLanes * sizeof(uint32_t)))) = uint32_t;
template <int kLanes>
using Halves __attribute__((vector_size(kLanes * sizeof(uint16_t)))) = uint16_t;

template <int kLanes>
CONVENE_CPU_INLINE void LoadLanes(const float* from, Register<kLanes>* to) {
  Load(from, to);
}
template <int kLanes>
CONVENE_CPU_INLINE void LoadLanes(const BFloat16* from, Register<kLanes>* to) {
  Halves<kLanes> halves;
  __builtin_memcpy(&halves, from, sizeof(halves));
  const Words<kLanes> words = __builtin_convertvector(halves, Words<kLanes>) << 16;
  __builtin_memcpy(to, &words, sizeof(words));
}

CONVENE_CPU_INLINE float SumOf(const Register<8>& lanes) {
  Register<8> sums = lanes;
  sums += __builtin_shufflevector(sums, sums, 4, 5, 6, 7, 0, 1, 2, 3);
  sums += __builtin_shufflevector(sums, sums, 2, 3, 0, 1, 6, 7, 4, 5);
  sums += __builtin_shufflevector(sums, sums, 1, 0, 3, 2, 5, 4, 7, 6);
  return sums[0];
}
CONVENE_CPU_INLINE float SumOf(const Register<16>& lanes) {
  Register<8> low, high;
  __builtin_memcpy(&low, &lanes, sizeof(low));
  __builtin_memcpy(&high, reinterpret_cast<const float*>(&lanes) + 8, sizeof(high));
  return SumOf(low + high);
}

// Some terms of each row's sum, by lanes: `terms` are floats of a, or, where both operands are
// BFloat16 and the processor multiplies these itself, pairs of them.
template <int kLanes, int kRows, typename A, typename In>
CONVENE_CPU_INLINE void Step(const A* a, ptrdiff_t lda, const In* b,
                             Register<kLanes> (&sums)[kRows][kSums], int part) {
  if constexpr (std::is_same_v<A, BFloat16>) {
    Register<kLanes> weights, terms;
    __builtin_memcpy(&weights, b, sizeof(weights));
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
      __builtin_memcpy(&terms, a + i * lda, sizeof(terms));
      // Not by the intrinsic, which no function may inline that is not compiled for AVX512-BF16.
      // Clang looks at this function by itself, without AVX-512, and takes no such register there.
#if !defined(__clang__)
      asm("vdpbf16ps %2, %1, %0" : "+v"(sums[i][part]) : "v"(terms), "v"(weights));
#endif
    }
  } else {
    Register<kLanes> weights, terms;
    LoadLanes<kLanes>(b, &weights);
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
      LoadLanes<kLanes>(a + i * lda, &terms);
      sums[i][part] += terms * weights;
    }
  }
}

// kRows of a by one row of b. One column at a time, so that the weights are read as they lie: half
// as fast again as three columns side by side (bf16, one row, two cores of an AMD EPYC).
template <int kLanes, int kRows, typename A, typename In, typename Out>
CONVENE_CPU_INLINE void Tile(const ProductShape& shape, const A* a, const In* b, float beta,
                             Out* c) {
  constexpr int kTerms = std::is_same_v<A, BFloat16> ? 2 * kLanes : kLanes;
  constexpr int kStep = kSums * kTerms;
  constexpr int kLine = 64 / sizeof(In);
  // The processor's own prefetch ends at each page. Not as far as the first cache, where the rows
  // of a are: 19 ms against 26 (fp32, 8 rows, a 125M Llama, two cores of an AMD EPYC).
  constexpr int kAhead = 4096 / sizeof(In);
  constexpr int kSecondCache = 2;
  const ptrdiff_t lda = shape.lda;
  Register<kLanes> sums[kRows][kSums] = {};
  int k = 0;
  for (; k + kStep <= shape.k; k += kStep) {
#pragma GCC unroll 8
    for (int line = 0; line < kStep; line += kLine)
      __builtin_prefetch(b + k + kAhead + line, 0, kSecondCache);
#pragma GCC unroll 8
    for (int part = 0; part < kSums; ++part) {
      Step<kLanes, kRows>(a + k + part * kTerms, lda, b + k + part * kTerms, sums, part);
    }
  }
  for (; k + kTerms <= shape.k; k += kTerms) Step<kLanes, kRows>(a + k, lda, b + k, sums, 0);
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
    float sum = SumOf(sums[i][0] + sums[i][1]);
    for (int rest = k; rest < shape.k; ++rest) sum += Widen(a[i * lda + rest]) * Widen(b[rest]);
    Out* const target = c + i * static_cast<ptrdiff_t>(shape.ldc);
    Narrow(beta == 0 ? sum : sum + Widen(*target), target);
  }
}

// All rows of a by one row of b: the latter comes from memory for the first tile, and from the
// cache for the others.
template <int kLanes, int kRows, typename A, typename In, typename Out>
CONVENE_CPU_INLINE void Rows(const ProductShape& shape, int rows, const A* a, const In* b,
                             float beta, Out* c) {
  for (; rows >= kRows; rows -= kRows) {
    Tile<kLanes, kRows>(shape, a, b, beta, c);
    a += kRows * static_cast<ptrdiff_t>(shape.lda);
    c += kRows * static_cast<ptrdiff_t>(shape.ldc);
  }
  if constexpr (kRows > 1) Rows<kLanes, kRows / 2>(shape, rows, a, b, beta, c);
}

template <int kLanes, int kRows, typename A, typename In, typename Out>
CONVENE_CPU_INLINE void Product(const ProductShape& shape, const A* a, const In* b, float beta,
                                Out* c) {
  const ptrdiff_t ldb = shape.ldb;
  for (int column = 0; column < shape.n; ++column) {
    Rows<kLanes, kRows>(shape, shape.m, a, b + column * ldb, beta, c + column);
  }
}

// The tile is what the machine's registers hold, so the clones differ in more than the
// instructions.
#if defined(__x86_64__)
template <typename Out>
__attribute__((target("avx512f"))) void ProductAvx512Bf16(const ProductShape& shape,
                                                          const BFloat16* a, const BFloat16* b,
                                                          float beta, Out* c) {
  Product<16, 8>(shape, a, b, beta, c);
}
template <typename In, typename Out>
__attribute__((target("avx512f"))) void ProductAvx512(const ProductShape& shape, const float* a,
                                                      const In* b, float beta, Out* c) {
  Product<16, 8>(shape, a, b, beta, c);
}
template <typename In, typename Out>
__attribute__((target("avx2,fma"))) void ProductAvx2(const ProductShape& shape, const float* a,
                                                     const In* b, float beta, Out* c) {
  Product<8, 4>(shape, a, b, beta, c);
}
#endif
template <typename In, typename Out>
void ProductDefault(const ProductShape& shape, const float* a, const In* b, float beta, Out* c) {
  Product<8, 2>(shape, a, b, beta, c);
}

template <typename In, typename Out>
auto FastestProduct() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f")) return ProductAvx512<In, Out>;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return ProductAvx2<In, Out>;
#endif
  return ProductDefault<In, Out>;
}

// The rows of a as floats, side by side, and the shape with them.
struct WideRows {
  ProductShape shape;
  const float* a;
};
WideRows WidenRows(const ProductShape& shape, const float* a) { return {shape, a}; }
WideRows WidenRows(const ProductShape& shape, const BFloat16* a) {
  thread_local std::vector<float> rows;  // grows to the largest and stays
  const auto k = static_cast<size_t>(shape.k);
  rows.resize(std::max(rows.size(), k * kMostRows));
  for (int i = 0; i < shape.m; ++i) {
    const BFloat16* const from = a + static_cast<ptrdiff_t>(i) * shape.lda;
    for (size_t j = 0; j < k; ++j) rows[i * k + j] = Widen(from[j]);
  }
  WideRows wide = {shape, rows.data()};
  wide.shape.lda = shape.k;
  return wide;
}

bool MultipliesBFloat16() {
#if defined(__x86_64__) && !defined(__clang__)
  __builtin_cpu_init();
  static const bool has = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bf16");
  return has;
#else
  return false;
#endif
}

// Calls run(product, shape, rows of a): the fastest product, and the operands that it takes.
template <typename In, typename Out, typename Run>
void WithProduct(const ProductShape& shape, const In* a, const Run& run) {
#if defined(__x86_64__)
  if constexpr (std::is_same_v<In, BFloat16>) {
    if (MultipliesBFloat16()) return run(ProductAvx512Bf16<Out>, shape, a);
  }
#endif
  static const auto product = FastestProduct<In, Out>();
  const WideRows wide = WidenRows(shape, a);
  run(product, wide.shape, wide.a);
}

// The time of one thread: a core of an AMD EPYC reads 16 GB a second and multiplies 30 G pairs.
template <typename In>
double Nanoseconds(const ProductShape& shape) {
  constexpr double kByte = 0.06;
  constexpr double kMultiplyAdd = 0.03;
  constexpr double kInCache = 1 << 20;
  const double weights = static_cast<double>(shape.n) * shape.k;
  const double bytes = weights * sizeof(In);
  return weights * kMultiplyAdd * (shape.m + 1) + (bytes > kInCache ? bytes * kByte : 0.0);
}

}  // namespace

bool HasFewRows(const ProductShape& shape) {
  return shape.transpose_a == Transpose::kNo && shape.transpose_b == Transpose::kYes &&
         shape.m <= kMostRows;
}

template <typename In, typename Out>
void FewRowsMatMul(const ProductShape& shape, const In* a, const In* b, float beta, Out* c) {
  WithProduct<In, Out>(shape, a, [&](auto product, const ProductShape& taken, const auto* rows) {
    ForPieces(Nanoseconds<In>(shape), CeilDivide(shape.n, kPieceColumns), [&](int64_t piece) {
      const auto column = static_cast<int>(piece) * kPieceColumns;
      ProductShape part = taken;
      part.n = std::min(kPieceColumns, shape.n - column);
      product(part, rows, b + static_cast<ptrdiff_t>(column) * shape.ldb, beta, c + column);
    });
  });
}

template <typename In, typename Out>
void MultiplyFewRows(const ProductShape& shape, const In* a, const In* b, float beta, Out* c) {
  WithProduct<In, Out>(shape, a, [&](auto product, const ProductShape& taken, const auto* rows) {
    product(taken, rows, b, beta, c);
  });
}

CONVENE_INSTANTIATE_PRODUCT(FewRowsMatMul);
CONVENE_INSTANTIATE_PRODUCT(MultiplyFewRows);

}  // namespace convene::worker::cpu

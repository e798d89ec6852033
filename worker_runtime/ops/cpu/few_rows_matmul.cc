#include "worker_runtime/ops/cpu/few_rows_matmul.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "tools/base/rounding.h"
#include "worker_runtime/ops/cpu/lanes.h"
#include "worker_runtime/ops/cpu/simd.h"
#include "worker_runtime/ops/cpu/thread_count.h"
#include "worker_runtime/ops/instantiate.h"

namespace convene::worker::cpu {
namespace {

// With AVX-512 a tile packs nothing and runs at the speed of the processor's multiplications, until
// the rows leave its caches: long ones sooner. Weights in memory, by oneDNN's best way beside it,
// two cores of an AMD EPYC, GFLOP/s: fp32 by 64 rows 187 and 139 (k 768), 151 and 175 (k 2048);
// bf16 348 and 300, 312 and 332. By 128 rows, of experts, whose weights are in the cache: 296 and
// 402.
constexpr int kMostRowsAvx512 = 64;
constexpr int kMostLongRowsAvx512 = 48;
constexpr int kLongRow = 1024;
// With AVX2 sgemm's packing pays earlier: 93 ms against 106 by 16 rows, 52 against 83 by 8 (the
// fp32 products of a 125M Llama, one core).
constexpr int kMostRows = 16;
// Columns of c that one thread makes at once.
constexpr int kPieceColumns = 48;
// Columns of a tile. Each element of a that is loaded serves all of them, so that loads are no more
// than half of a tile's instructions: 47 G multiply-adds a second by 8 rows of fp32, by one column
// 30 (one core of an AMD EPYC with AVX-512, weights in memory).
constexpr int kTileColumns = 3;
// A processor's first cache has few places for addresses that are a multiple of this apart.
constexpr size_t kBadStride = 4096;

// Gcc would load an operand of AVX-512 anew for each instruction that uses it. (Clang, which looks
// at these functions by themselves, without AVX-512, knows no such register there.)
template <typename R>
CONVENE_CPU_INLINE void KeepInRegister([[maybe_unused]] R* x) {
#if defined(__x86_64__) && !defined(__clang__)
  if constexpr (sizeof(R) == 64) asm("" : "+v"(*x));
#endif
}

// sum += x y, pairs of BFloat16. Not by the intrinsic, which no function may inline that is not
// compiled for AVX512-BF16.
template <typename R>
CONVENE_CPU_INLINE void MultiplyPairs([[maybe_unused]] const R& x, [[maybe_unused]] const R& y,
                                      [[maybe_unused]] R* sum) {
#if defined(__x86_64__) && !defined(__clang__)
  R in_register = *sum;  // gcc keeps an array in memory of which an element is an operand
  asm("vdpbf16ps %2, %1, %0" : "+v"(in_register) : "v"(x), "v"(y));
  *sum = in_register;
#endif
}

// One term of each sum, by lanes: of a, floats, or, where both operands are BFloat16 and the
// processor multiplies these itself, pairs of them.
template <int kLanes, int kRows, int kColumns, typename A, typename In>
CONVENE_CPU_INLINE void Step(const A* a, ptrdiff_t lda, const In* b, ptrdiff_t ldb,
                             Register<kLanes> (&sums)[kRows][kColumns]) {
  constexpr bool kPairs = std::is_same_v<A, BFloat16>;
  Register<kLanes> weights[kColumns], terms;
#pragma GCC unroll 4
  for (int j = 0; j < kColumns; ++j) {
    if constexpr (kPairs) {
      __builtin_memcpy(&weights[j], b + j * ldb, sizeof(terms));
    } else {
      LoadLanes<kLanes>(b + j * ldb, &weights[j]);
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
    __builtin_memcpy(&terms, a + i * lda, sizeof(terms));
    KeepInRegister(&terms);
#pragma GCC unroll 4
    for (int j = 0; j < kColumns; ++j) {
      if constexpr (kPairs) {
        MultiplyPairs(terms, weights[j], &sums[i][j]);
      } else {
        sums[i][j] += terms * weights[j];
      }
    }
  }
}

// kRows of a by kColumns rows of b; the weights `ahead` of these are fetched meanwhile.
template <int kLanes, int kRows, int kColumns, typename A, typename In, typename Out>
CONVENE_CPU_INLINE void Tile(const ProductShape& shape, const A* a, const In* b, ptrdiff_t ahead,
                             float beta, Out* c) {
  constexpr int kTerms = std::is_same_v<A, BFloat16> ? 2 * kLanes : kLanes;
  // Not as far as the first cache, where the rows of a are.
  constexpr int kSecondCache = 2;
  const ptrdiff_t lda = shape.lda;
  const ptrdiff_t ldb = shape.ldb;
  Register<kLanes> sums[kRows][kColumns] = {};
  const auto step = [&](int k) __attribute__((always_inline)) {
#pragma GCC unroll 4
    for (int j = 0; j < kColumns; ++j) {
      __builtin_prefetch(b + j * ldb + k + ahead, 0, kSecondCache);
    }
    Step<kLanes, kRows, kColumns>(a + k, lda, b + k, ldb, sums);
  };
  int k = 0;
  if constexpr (kRows * kColumns == 1) {  // so little that the loop itself would take a fifth
    for (; k + 4 * kTerms <= shape.k; k += 4 * kTerms) {
#pragma GCC unroll 4
      for (int term = 0; term < 4; ++term) step(k + term * kTerms);
    }
  }
  for (; k + kTerms <= shape.k; k += kTerms) step(k);
  const auto finish = [&](int i, int j, float sum) __attribute__((always_inline)) {
    for (int rest = k; rest < shape.k; ++rest) {
      sum += Widen(a[i * lda + rest]) * Widen(b[j * ldb + rest]);
    }
    Out* const target = c + i * static_cast<ptrdiff_t>(shape.ldc) + j;
    Narrow(beta == 0 ? sum : sum + Widen(*target), target);
  };
  constexpr int kAtOnce = std::min(kRows, 4);
#pragma GCC unroll 4
  for (int i = 0; i < kRows; i += kAtOnce) {
#pragma GCC unroll 4
    for (int j = 0; j < kColumns; ++j) {
      Register<4> all;
      SumsOf<kLanes>(sums[i][j], sums[i + kAtOnce / 4][j], sums[i + kAtOnce / 2][j],
                     sums[i + kAtOnce - 1][j], &all);
      constexpr int kPlaces[] = {0, kAtOnce == 2 ? 2 : 1, 2, 3};
#pragma GCC unroll 4
      for (int row = 0; row < kAtOnce; ++row) finish(i + row, j, all[kPlaces[row]]);
    }
  }
}

// All rows of a by kColumns rows of b: the latter come from memory for the first tile, and from the
// cache for the others.
template <int kLanes, int kRows, int kColumns, typename A, typename In, typename Out>
CONVENE_CPU_INLINE void Rows(const ProductShape& shape, int rows, const A* a, const In* b,
                             ptrdiff_t ahead, float beta, Out* c) {
  for (; rows >= kRows; rows -= kRows) {
    Tile<kLanes, kRows, kColumns>(shape, a, b, ahead, beta, c);
    a += kRows * static_cast<ptrdiff_t>(shape.lda);
    c += kRows * static_cast<ptrdiff_t>(shape.ldc);
  }
  if constexpr (kRows > 1) {
    Rows<kLanes, kRows / 2, kColumns>(shape, rows, a, b, ahead, beta, c);
  }
}

// The processor's own prefetch ends at each page, and columns side by side are more places at once
// than it follows: the next ones are fetched while these are multiplied (fp32, 8 rows, one core of
// an AMD EPYC: 21 ms against 51). One row is read as it lies, column by column: 29 GB a second,
// by three columns 23.
template <int kLanes, int kRows, typename A, typename In, typename Out>
CONVENE_CPU_INLINE void Product(const ProductShape& shape, const A* a, const In* b, float beta,
                                Out* c) {
  constexpr ptrdiff_t kAhead = 4096 / sizeof(In);
  const ptrdiff_t ldb = shape.ldb;
  const ptrdiff_t tile = std::max<ptrdiff_t>(1, kTileColumns * ldb);  // k may be 0
  int column = 0;
  if (shape.m > 1) {
    const ptrdiff_t ahead = tile * (1 + 2 * kAhead / tile);
    for (; column + kTileColumns <= shape.n; column += kTileColumns) {
      Rows<kLanes, kRows, kTileColumns>(shape, shape.m, a, b + column * ldb, ahead, beta,
                                        c + column);
    }
  }
  for (; column < shape.n; ++column) {
    Rows<kLanes, kRows, 1>(shape, shape.m, a, b + column * ldb, kAhead, beta, c + column);
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

// The rows of a, and the shape with them.
template <typename T>
struct TakenRows {
  ProductShape shape;
  const T* a;
};

// As T, a line further apart than they are long, in memory of the thread that grows to the largest
// and stays; where they lie if their type and their distance are good.
template <typename T, typename In>
TakenRows<T> TakeRows(const ProductShape& shape, const In* a) {
  if constexpr (std::is_same_v<T, In>) {
    if (shape.m == 1 || shape.lda * sizeof(In) % kBadStride != 0) return {shape, a};
  }
  thread_local std::vector<T> rows;
  constexpr size_t kLine = 64 / sizeof(T);
  const size_t stride = RoundUp(static_cast<size_t>(shape.k), kLine) + kLine;
  rows.resize(std::max(rows.size(), stride * shape.m));
  for (int i = 0; i < shape.m; ++i) {
    const In* const from = a + static_cast<ptrdiff_t>(i) * shape.lda;
    for (int j = 0; j < shape.k; ++j) {
      if constexpr (std::is_same_v<T, In>) {
        rows[i * stride + j] = from[j];
      } else {
        rows[i * stride + j] = Widen(from[j]);
      }
    }
  }
  TakenRows<T> taken = {shape, rows.data()};
  taken.shape.lda = static_cast<int>(stride);
  return taken;
}

bool MultipliesSixteen() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx512f");
#else
  return false;
#endif
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
    if (MultipliesBFloat16()) {
      const auto taken = TakeRows<BFloat16>(shape, a);
      return run(ProductAvx512Bf16<Out>, taken.shape, taken.a);
    }
  }
#endif
  static const auto product = FastestProduct<In, Out>();
  const auto taken = TakeRows<float>(shape, a);
  run(product, taken.shape, taken.a);
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
  static const bool has_avx512 = MultipliesSixteen();
  const int most_avx512 = shape.k > kLongRow ? kMostLongRowsAvx512 : kMostRowsAvx512;
  const int most = has_avx512 ? most_avx512 : kMostRows;
  return shape.transpose_a == Transpose::kNo && shape.transpose_b == Transpose::kYes &&
         shape.m <= most;
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

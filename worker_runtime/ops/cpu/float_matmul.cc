#include "worker_runtime/ops/cpu/float_matmul.h"

#include <algorithm>
#include <cstddef>

#include "worker_runtime/ops/cpu/thread_count.h"
#include "worker_runtime/ops/cpu/tiled_matmul.h"

namespace convene::worker::cpu {
namespace {

// The terms of the sum over k that the primitive is given at once of a weight gradient (see its
// header). Shorter sums were faster, too. Of a forward product it is given all: k was never shared
// out (1 to 64 threads, k to 16384), and a second slice, which adds, makes it as slow as sgemm.
constexpr int kSlice = 1024;

void SlicedPrimitive(const ProductShape& shape, const float* a, const float* b, float beta,
                     float* c) {
  const ScopedThreadCount thread_count(shape.m);
  const ptrdiff_t a_step = shape.transpose_a == Transpose::kYes ? shape.lda : 1;
  const ptrdiff_t b_step = shape.transpose_b == Transpose::kYes ? 1 : shape.ldb;
  const int most = shape.transpose_a == Transpose::kYes ? kSlice : shape.k;
  for (int first = 0; first < shape.k; first += most) {
    ProductShape slice = shape;
    slice.k = std::min(most, shape.k - first);
    PrimitiveMatMul(slice, a + first * a_step, b + first * b_step, first == 0 ? beta : 1.0f, c);
  }
}

}  // namespace

bool PrefersPrimitive(const ProductShape& shape) {
  // Below this the cost of a call itself counts: the primitive makes a list of its arguments each
  // time.
  constexpr int kShort = 256;
  if (shape.transpose_b == Transpose::kNo && shape.transpose_a == Transpose::kYes) {
    // sgemm does not copy a when c is narrow, and walks it with a stride that puts every row on the
    // same few sets of the cache: 68 GFLOP/s against 107 (one core of a Cascade Lake, m 2048, n
    // 384, k 2048).
    constexpr int kBadStride = 256;
    constexpr int kNarrow = 768;
    return shape.lda % kBadStride == 0 && shape.n < kNarrow && shape.k >= kShort;
  }
  // 110 against 123 GFLOP/s (n 384, k 384); sgemm is ahead again where n is 768, but for long sums:
  // 174 against 214 GFLOP/s (two cores of an AMD EPYC, m 1024, n 768, k 2048). No wider product was
  // measured.
  constexpr int kNarrow = 512;
  constexpr int kNarrowOfLong = 768;
  constexpr int kLong = 1024;
  return shape.transpose_b == Transpose::kYes && shape.transpose_a == Transpose::kNo &&
         (shape.n <= kNarrow || (shape.n <= kNarrowOfLong && shape.k >= kLong)) &&
         shape.k >= kShort && shape.m >= kShort;
}

void FloatMatMul(const ProductShape& shape, const float* a, const float* b, float beta, float* c) {
  if (NeedsTiles()) {
    TiledMatMul(shape, a, b, beta, c);
  } else if (PrefersPrimitive(shape)) {
    SlicedPrimitive(shape, a, b, beta, c);
  } else {
    const ScopedThreadCount thread_count(shape.m);
    Sgemm(shape, a, b, beta, c);
  }
}

}  // namespace convene::worker::cpu

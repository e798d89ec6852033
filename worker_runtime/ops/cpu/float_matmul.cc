#include "worker_runtime/ops/cpu/float_matmul.h"

#include <limits>

#include "worker_runtime/ops/cpu/thread_count.h"
#include "worker_runtime/ops/cpu/tiled_matmul.h"

namespace convene::worker::cpu {

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
  // With AVX-512 sgemm is behind by few rows and by narrow products: 69 against 212 GFLOP/s (m 64,
  // n 768, k 2048; two cores of an AMD EPYC), 165 against 208 (m 256, n 50304, k 512), 194 against
  // 226 (m 1024, n 768, k 512); it is ahead by a little where c is large: 222 and 214 (m 1024, n
  // 3072, k 768). By 3 rows (k 40000) the primitive took seconds.
  constexpr int kFewest = 64;
  constexpr int kManyRows = 512;
  constexpr int kNarrow = 1024;
  return shape.transpose_b == Transpose::kYes && shape.transpose_a == Transpose::kNo &&
         shape.m >= kFewest && shape.k >= kShort && (shape.m <= kManyRows || shape.n <= kNarrow);
}

void FloatMatMul(const ProductShape& shape, const float* a, const float* b, float beta, float* c) {
  if (NeedsTiles()) {
    TiledMatMul(shape, a, b, beta, c);
  } else if (PrefersPrimitive(shape)) {
    const LibraryTeam team = ProductTeam(shape, kNanosecondsOfFloat);
    PrimitiveMatMul(shape, a, b, beta, c);
  } else {
    // oneDNN 2.6 shares out the sum over k, and so changes its rounding, when c has few rows and
    // there are many threads: seen from 8 threads on, up to 128 rows and never from 160 on.
    constexpr int kFewRows = 192;
    constexpr int kThreadsForFewRows = 4;
    const LibraryTeam team =
        ProductTeam(shape, kNanosecondsOfFloat,
                    shape.m < kFewRows ? kThreadsForFewRows : std::numeric_limits<int>::max());
    Sgemm(shape, a, b, beta, c);
  }
}

}  // namespace convene::worker::cpu

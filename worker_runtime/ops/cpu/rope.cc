#include "worker_runtime/ops/rope.h"

#include <cstddef>
#include <cstdint>

#include "worker_runtime/ops/cpu/cpu_ops.h"
#include "worker_runtime/ops/cpu/simd.h"
#include "worker_runtime/ops/cpu/thread_count.h"
#include "worker_runtime/ops/instantiate.h"

namespace convene::worker::cpu {
namespace {

constexpr double kNanoseconds = 0.2;  // a pair

template <typename T>
CONVENE_CPU_CLONES void TurnRow(int heads, int head_size, int turned, const float* cosines,
                                const float* sines, float sign, T* row) {
  const int half = turned / 2;
  for (int head = 0; head < heads; ++head) {
    T* low = row + static_cast<ptrdiff_t>(head) * head_size;
    T* high = low + half;
#pragma omp simd
    for (int i = 0; i < half; ++i) {
      const float a = Widen(low[i]);
      const float b = Widen(high[i]);
      const float sine = sign * sines[i];
      Narrow(a * cosines[i] - b * sine, &low[i]);
      Narrow(b * cosines[i] + a * sine, &high[i]);
    }
  }
}

}  // namespace

template <typename T>
void RopeApply(int batch, int sequence_length, int heads, int head_size, int turned, int row_stride,
               const float* cosines, const float* sines, const int32_t* positions,
               const int32_t* document_begin, bool inverse, T* x, Stream& /*stream*/) {
  const int rows = batch * sequence_length;
  const int half = turned / 2;
  const double pairs = static_cast<double>(rows) * heads * half;
  ForPieces(kNanoseconds * pairs, rows, [=](int64_t row) {
    const int64_t token = row % sequence_length;
    const int position = (positions == nullptr ? token : positions[token]) -
                         (document_begin == nullptr ? 0 : document_begin[row]);
    const ptrdiff_t angles = static_cast<ptrdiff_t>(position) * half;
    TurnRow(heads, head_size, turned, cosines + angles, sines + angles, inverse ? -1.0f : 1.0f,
            x + row * row_stride);
  });
}

CONVENE_INSTANTIATE(RopeApply);

}  // namespace convene::worker::cpu

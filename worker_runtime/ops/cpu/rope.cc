#include "worker_runtime/ops/rope.h"

#include <cmath>
#include <cstddef>

#include "worker_runtime/ops/cpu/simd.h"

namespace convene::worker {
namespace {

constexpr int kParallelRows = 64;

CONVENE_CPU_CLONES void TurnRow(int heads, int head_size, const float* cosines, const float* sines,
                                float sign, float* row) {
  const int half = head_size / 2;
  for (int head = 0; head < heads; ++head) {
    float* low = row + static_cast<ptrdiff_t>(head) * head_size;
    float* high = low + half;
#pragma omp simd
    for (int i = 0; i < half; ++i) {
      const float a = low[i];
      const float b = high[i];
      const float sine = sign * sines[i];
      low[i] = a * cosines[i] - b * sine;
      high[i] = b * cosines[i] + a * sine;
    }
  }
}

}  // namespace

void RopeTable(int sequence_length, int head_size, double theta, float* cosines, float* sines) {
  const int half = head_size / 2;
  for (int position = 0; position < sequence_length; ++position) {
    for (int i = 0; i < half; ++i) {
      const double angle = position * std::pow(theta, -2.0 * i / head_size);
      const ptrdiff_t index = static_cast<ptrdiff_t>(position) * half + i;
      cosines[index] = static_cast<float>(std::cos(angle));
      sines[index] = static_cast<float>(std::sin(angle));
    }
  }
}

void RopeApply(int batch, int sequence_length, int heads, int head_size, int row_stride,
               const float* cosines, const float* sines, bool inverse, float* x,
               Stream& /*stream*/) {
  const int rows = batch * sequence_length;
  const int half = head_size / 2;
#pragma omp parallel for schedule(static) if (rows >= kParallelRows)
  for (int row = 0; row < rows; ++row) {
    const ptrdiff_t angles = static_cast<ptrdiff_t>(row % sequence_length) * half;
    TurnRow(heads, head_size, cosines + angles, sines + angles, inverse ? -1.0f : 1.0f,
            x + static_cast<ptrdiff_t>(row) * row_stride);
  }
}

}  // namespace convene::worker

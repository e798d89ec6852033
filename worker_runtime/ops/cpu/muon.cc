#include "worker_runtime/ops/muon.h"

#include <algorithm>
#include <cmath>

#include "tools/base/rounding.h"
#include "worker_runtime/ops/cpu/cpu_ops.h"
#include "worker_runtime/ops/cpu/simd.h"
#include "worker_runtime/ops/cpu/thread_count.h"
#include "worker_runtime/ops/instantiate.h"

namespace convene::worker::cpu {
namespace {

constexpr int64_t kBlock = 1 << 14;
constexpr double kNanoseconds = 0.15;  // an element

template <typename T>
CONVENE_CPU_CLONES void ScaleBlock(int64_t count, float scale, const float* x, T* y) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) Narrow(x[i] * scale, &y[i]);
}

template <typename T>
CONVENE_CPU_CLONES void CombineBlock(int64_t count, float a, float b, const float* y, T* x) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) Narrow(a * Widen(x[i]) + b * y[i], &x[i]);
}

template <typename Run>
void ForBlocks(int64_t count, const Run& run) {
  ForPieces(kNanoseconds * static_cast<double>(count), CeilDivide(count, kBlock),
            [&](int64_t block) { run(block * kBlock, std::min(kBlock, count - block * kBlock)); });
}

}  // namespace

template <typename T>
void ScaleToUnit(int64_t count, const float* x, const double* sum_of_squares, T* y,
                 Stream& /*stream*/) {
  const auto scale = static_cast<float>(1 / std::max(std::sqrt(*sum_of_squares), 1e-7));
  ForBlocks(count, [=](int64_t begin, int64_t length) {
    ScaleBlock(length, scale, x + begin, y + begin);
  });
}

template <typename T>
void Combine(int64_t count, float a, float b, const float* y, T* x, Stream& /*stream*/) {
  ForBlocks(count, [=](int64_t begin, int64_t length) {
    CombineBlock(length, a, b, y + begin, x + begin);
  });
}

CONVENE_INSTANTIATE(ScaleToUnit);
CONVENE_INSTANTIATE(Combine);

}  // namespace convene::worker::cpu

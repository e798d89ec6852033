#include "worker_runtime/ops/elementwise.h"

#include <algorithm>

#include "worker_runtime/ops/cpu/simd.h"

namespace convene::worker {
namespace {

constexpr int64_t kBlock = 1 << 14;
constexpr int kPartialSums = 64;

CONVENE_CPU_CLONES void AddBlock(int64_t count, const float* x, float* y) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) y[i] += x[i];
}

CONVENE_CPU_CLONES void ScaleBlock(int64_t count, float factor, float* x) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) x[i] *= factor;
}

CONVENE_CPU_CLONES double SumOfSquaresBlock(int64_t count, const float* x) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < count; ++i) {
    const double value = x[i];
    sum += value * value;
  }
  return sum;
}

}  // namespace

void AddInPlace(int64_t count, const float* x, float* y, Stream& /*stream*/) {
#pragma omp parallel for schedule(static) if (count > kBlock)
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    AddBlock(std::min(kBlock, count - begin), x + begin, y + begin);
  }
}

void ScaleInPlace(int64_t count, float factor, float* x, Stream& /*stream*/) {
#pragma omp parallel for schedule(static) if (count > kBlock)
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    ScaleBlock(std::min(kBlock, count - begin), factor, x + begin);
  }
}

double SumOfSquares(int64_t count, const float* x, Stream& /*stream*/) {
  // As many parts as there ever are, whatever the number of threads: their borders, and with them
  // the bits, depend on count alone.
  double partial_sums[kPartialSums] = {};
  const int64_t part = std::max(kBlock, (count + kPartialSums - 1) / kPartialSums);
#pragma omp parallel for schedule(static) if (count > kBlock)
  for (int i = 0; i < kPartialSums; ++i) {
    const int64_t begin = i * part;
    if (begin < count)
      partial_sums[i] = SumOfSquaresBlock(std::min(part, count - begin), x + begin);
  }
  double sum = 0;
  for (const double partial : partial_sums) sum += partial;
  return sum;
}

}  // namespace convene::worker

#include "worker_runtime/ops/cpu/softmax.h"

#include <algorithm>

#include "worker_runtime/ops/cpu/simd.h"
#include "worker_runtime/ops/instantiate.h"

namespace convene::worker::cpu {
template <typename T>
CONVENE_CPU_CLONES float Max(int count, const T* x) {
  float largest = Widen(x[0]);
#pragma omp simd reduction(max : largest)
  for (int i = 0; i < count; ++i) largest = Widen(x[i]) > largest ? Widen(x[i]) : largest;
  return largest;
}

template <typename T>
CONVENE_CPU_CLONES float BlockExpSum(int count, float shift, const T* x) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int i = 0; i < count; ++i) sum += Exp(Widen(x[i]) - shift);
  return sum;
}

// The blocks are added in double: in a vocabulary's row thousands of terms lie below the last bit
// of a float that holds the largest, and a float would lose them one by one, always downwards.
template <typename T>
float ExpSum(int count, float shift, const T* x) {
  constexpr int kBlock = 128;
  double sum = 0;
  for (int i = 0; i < count; i += kBlock) {
    sum += static_cast<double>(BlockExpSum(std::min(kBlock, count - i), shift, x + i));
  }
  return static_cast<float>(sum);
}

template <typename T>
CONVENE_CPU_CLONES void ScaledExpInPlace(int count, float shift, float factor, T* x) {
#pragma omp simd
  for (int i = 0; i < count; ++i) Narrow(factor * Exp(Widen(x[i]) - shift), &x[i]);
}

CONVENE_CPU_CLONES float ExpInPlace(int count, float shift, float* x) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int i = 0; i < count; ++i) {
    const float e = Exp(x[i] - shift);
    x[i] = e;
    sum += e;
  }
  return sum;
}

CONVENE_INSTANTIATE(Max);
CONVENE_INSTANTIATE(ExpSum);
CONVENE_INSTANTIATE(ScaledExpInPlace);

CONVENE_CPU_CLONES void CapRow(int count, float cap, float* scores) {
  const float inverse = 1.0f / cap;
#pragma omp simd
  for (int i = 0; i < count; ++i) scores[i] = cap * Tanh(scores[i] * inverse);
}

CONVENE_CPU_CLONES void ScaleRow(int count, float factor, float* x) {
#pragma omp simd
  for (int i = 0; i < count; ++i) x[i] *= factor;
}

void SoftmaxRow(int padded, int head_size, float* scores, float* row_max, float* row_sum,
                float* out) {
  const float new_max = std::max(*row_max, Max(padded, scores));
  if (new_max != *row_max) {
    const float correction = Exp(*row_max - new_max);
    *row_sum *= correction;
    ScaleRow(head_size, correction, out);
    *row_max = new_max;
  }
  *row_sum += ExpInPlace(padded, new_max, scores);
}

}  // namespace convene::worker::cpu

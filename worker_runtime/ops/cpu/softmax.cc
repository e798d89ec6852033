#include "worker_runtime/ops/cpu/softmax.h"

#include "worker_runtime/ops/cpu/simd.h"

namespace convene::worker::cpu {
namespace {

template <typename T>
CONVENE_CPU_INLINE float MaxOf(int count, const T* x) {
  float largest = Widen(x[0]);
#pragma omp simd reduction(max : largest)
  for (int i = 0; i < count; ++i) largest = Widen(x[i]) > largest ? Widen(x[i]) : largest;
  return largest;
}

template <typename T>
CONVENE_CPU_INLINE float SumOfExponentials(int count, float shift, const T* x) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int i = 0; i < count; ++i) sum += Exp(Widen(x[i]) - shift);
  return sum;
}

template <typename T>
CONVENE_CPU_INLINE void ScaledExponentials(int count, float shift, float factor, T* x) {
#pragma omp simd
  for (int i = 0; i < count; ++i) Narrow(factor * Exp(Widen(x[i]) - shift), &x[i]);
}

}  // namespace

CONVENE_CPU_CLONES float Max(int count, const float* x) { return MaxOf(count, x); }
CONVENE_CPU_CLONES float Max(int count, const BFloat16* x) { return MaxOf(count, x); }

CONVENE_CPU_CLONES float ExpSum(int count, float shift, const float* x) {
  return SumOfExponentials(count, shift, x);
}
CONVENE_CPU_CLONES float ExpSum(int count, float shift, const BFloat16* x) {
  return SumOfExponentials(count, shift, x);
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

CONVENE_CPU_CLONES void ScaledExpInPlace(int count, float shift, float factor, float* x) {
  ScaledExponentials(count, shift, factor, x);
}
CONVENE_CPU_CLONES void ScaledExpInPlace(int count, float shift, float factor, BFloat16* x) {
  ScaledExponentials(count, shift, factor, x);
}

}  // namespace convene::worker::cpu

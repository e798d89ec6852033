#include "worker_runtime/ops/cpu/softmax.h"

#include "worker_runtime/ops/cpu/simd.h"

namespace convene::worker::cpu {
CONVENE_CPU_CLONES float Max(int count, const float* x) {
  float largest = x[0];
#pragma omp simd reduction(max : largest)
  for (int i = 0; i < count; ++i) largest = x[i] > largest ? x[i] : largest;
  return largest;
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

}  // namespace convene::worker::cpu

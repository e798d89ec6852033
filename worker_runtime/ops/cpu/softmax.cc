#include "worker_runtime/ops/cpu/softmax.h"

#include "worker_runtime/ops/cpu/simd.h"

namespace convene::worker::cpu {
namespace {

CONVENE_CPU_INLINE float Larger(float a, float b) { return a > b ? a : b; }

}  // namespace

// In lanes of its own, because clang 14 does not vectorise a maximum without -ffast-math.
CONVENE_CPU_CLONES float Max(int count, const float* x) {
  constexpr int kLanes = 16;
  float lanes[kLanes];
  for (float& lane : lanes) lane = x[0];
  int i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) lanes[lane] = Larger(lanes[lane], x[i + lane]);
  }
  for (; i < count; ++i) lanes[0] = Larger(lanes[0], x[i]);
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int lane = 0; lane < half; ++lane) {
      lanes[lane] = Larger(lanes[lane], lanes[lane + half]);
    }
  }
  return lanes[0];
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

// What the hot loops of the CPU ops share: one binary for every x86-64, vectors, and an exponential
// that vectorises.
#pragma once

#include <cstdint>

// Compiles the function three times; the loader picks by CPU. Only on leaf functions without `omp
// parallel`: the compiler would outline the region without the clone's instructions. Empty under
// sanitizers: the loader runs the choice (an ifunc) before the sanitizer's own start-up, which
// crashes.
#if defined(CONVENE_SANITIZER) || !defined(__x86_64__)
#define CONVENE_CPU_CLONES
#else
#define CONVENE_CPU_CLONES __attribute__((target_clones("avx512f", "arch=haswell", "default")))
#endif

// For helpers of the functions above: they must be compiled again inside each clone.
#define CONVENE_CPU_INLINE inline __attribute__((always_inline))

namespace convene::worker::cpu {

// e^x within 2 units in the last place for x in [-87.3, 88.3]; 0 below -87.7, e^88.3 above; NaN for
// NaN. Branch-free, unlike libm's, so that loops over it vectorise without -ffast-math.
//
// x = n ln2 + r, |r| <= ln2/2 (Cody and Waite's split of ln2); e^r by the minimax polynomial of
// Cephes' expf; times 2^n through the exponent's bits.
CONVENE_CPU_INLINE float Exp(float x) {
  constexpr float kLowest = -88.0f;  // n = -127: the exponent's bits are 0, and so is the result
  constexpr float kHighest = 88.3f;
  constexpr float kLog2E = 1.44269504088896341f;
  constexpr float kLn2High = 0.693359375f;
  constexpr float kLn2Low = -2.12194440e-4f;
  // Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits.
  constexpr float kRounder = 12582912.0f;

  float clamped = x < kLowest ? kLowest : x;  // in this order, NaN stays NaN
  clamped = clamped > kHighest ? kHighest : clamped;
  const float shifted = clamped * kLog2E + kRounder;
  const float n = shifted - kRounder;
  const float r = (clamped - n * kLn2High) - n * kLn2Low;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  const float power = __builtin_bit_cast(
      float, (__builtin_bit_cast(uint32_t, shifted) << 23) + (uint32_t{127} << 23));
  return p * power;
}

}  // namespace convene::worker::cpu

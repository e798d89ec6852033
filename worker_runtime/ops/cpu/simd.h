// Shared by the hot loops of the CPU ops: one binary for every x86-64, vectors, and an exponential
// that vectorises.
#pragma once

#include <cstdint>

#include "worker_runtime/device/dtype.h"

// Compiles the function, or each function of a template, three times; the loader picks by CPU. Only
// on leaf functions without an OpenMP region: the compiler would outline the region without the
// clone's instructions. Empty by clang, which has it only for functions that are no templates (14;
// nothing that is shipped is built by it), and under sanitizers: the loader runs the choice (an
// ifunc) before the sanitizer's own start-up, which crashes.
#if defined(CONVENE_SANITIZER) || defined(__clang__) || !defined(__x86_64__)
#define CONVENE_CPU_CLONES
#else
#define CONVENE_CPU_CLONES \
  __attribute__((target_clones("arch=x86-64-v4", "arch=haswell", "default")))
#endif

// For helpers of the functions above: they must be compiled again inside each clone.
#define CONVENE_CPU_INLINE inline __attribute__((always_inline))

namespace convene::worker::cpu {

// Rows are padded to whole vectors of the widest machine.
inline constexpr int kVectorFloats = 16;

// As many floats as one register of the clone's target has. Never more: gcc splits a wider vector
// and keeps it in memory, which takes ten times as long.
template <int kFloats>
using Register __attribute__((vector_size(kFloats * sizeof(float)))) = float;

template <typename R>
CONVENE_CPU_INLINE void Load(const float* from, R* to) {
  __builtin_memcpy(to, from, sizeof(*to));
}

template <typename R>
CONVENE_CPU_INLINE void Store(const R& from, float* to) {
  __builtin_memcpy(to, &from, sizeof(from));
}

// Ops compute in float, whatever they store.
CONVENE_CPU_INLINE float Widen(float x) { return x; }
CONVENE_CPU_INLINE float Widen(BFloat16 x) {
  return __builtin_bit_cast(float, static_cast<uint32_t>(x.bits) << 16);
}
CONVENE_CPU_INLINE void Narrow(float x, float* y) { *y = x; }
CONVENE_CPU_INLINE void Narrow(float x, BFloat16* y) { y->bits = BFloat16::Round(x); }

// e^x within 2 units in the last place for x in [-87.3, 88.3]; 0 below -87.7, NaN for NaN.
// REQUIRES: x <= 88.3 (the users' x is a difference to a maximum, or -|x|). Branch-free, unlike
// libm's, so that loops over it vectorise without -ffast-math.
//
// x = n ln2 + r, |r| <= ln2/2 (Cody and Waite's split of ln2); e^r by the minimax polynomial of
// Cephes' expf; times 2^n through the exponent's bits.
CONVENE_CPU_INLINE float Exp(float x) {
  // n = -127: the exponent's bits are 0, and so is the result.
  constexpr float kLowest = -88.0f;
  constexpr float kLog2E = 1.44269504088896341f;
  constexpr float kLn2High = 0.693359375f;
  constexpr float kLn2Low = -2.12194440e-4f;
  // Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits.
  constexpr float kRounder = 12582912.0f;

  // In this order NaN stays NaN. Only one such choice: a second one makes gcc thread the two into
  // paths of their own, and the vector code then computes each path for each element.
  const float clamped = x < kLowest ? kLowest : x;
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
  // Not std::bit_cast: its template is not inlined into a clone.
  const uint32_t exponent = (__builtin_bit_cast(uint32_t, shifted) << 23) + (uint32_t{127} << 23);
  return p * __builtin_bit_cast(float, exponent);
}

// 1 / (1 + e^-x), through e^-|x| so that nothing overflows.
CONVENE_CPU_INLINE float Sigmoid(float x) {
  const float e = Exp(-__builtin_fabsf(x));
  return (x < 0 ? e : 1.0f) / (1.0f + e);
}

// tanh(x) within some units in the last place; NaN for NaN. Near 0 by Cephes' polynomial of tanhf,
// else through e^-2|x|.
CONVENE_CPU_INLINE float Tanh(float x) {
  constexpr float kNear = 0.625f;
  const float magnitude = __builtin_fabsf(x);
  const float e = Exp(-2.0f * magnitude);
  const float far = __builtin_copysignf(1.0f - 2.0f * e / (1.0f + e), x);
  const float z = x * x;
  float p = -5.70498872745e-3f;
  p = p * z + 2.06390887954e-2f;
  p = p * z - 5.37397155531e-2f;
  p = p * z + 1.33314422036e-1f;
  p = p * z - 3.33332819422e-1f;
  return magnitude < kNear ? p * z * x + x : far;
}

}  // namespace convene::worker::cpu

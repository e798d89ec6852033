// Sums by the lanes of a register: what is read of either type, and how lanes become one number.
#pragma once

#include <cstdint>

#include "worker_runtime/ops/cpu/simd.h"

namespace convene::worker::cpu {

template <int kLanes>
using Words __attribute__((vector_size(kLanes * sizeof(uint32_t)))) = uint32_t;
template <int kLanes>
using Halves __attribute__((vector_size(kLanes * sizeof(uint16_t)))) = uint16_t;

// As many numbers as the register has lanes, widened.
template <int kLanes>
CONVENE_CPU_INLINE void LoadLanes(const float* from, Register<kLanes>* to) {
  Load(from, to);
}
template <int kLanes>
CONVENE_CPU_INLINE void LoadLanes(const BFloat16* from, Register<kLanes>* to) {
  Halves<kLanes> halves;
  __builtin_memcpy(&halves, from, sizeof(halves));
  const Words<kLanes> words = __builtin_convertvector(halves, Words<kLanes>) << 16;
  __builtin_memcpy(to, &words, sizeof(words));
}

// The first two of each four neighbours of x and of y by turns, added to the last two.
CONVENE_CPU_INLINE void AddTwos(const Register<8>& x, const Register<8>& y, Register<8>* sum) {
  *sum = __builtin_shufflevector(x, y, 0, 8, 1, 9, 4, 12, 5, 13) +
         __builtin_shufflevector(x, y, 2, 10, 3, 11, 6, 14, 7, 15);
}
CONVENE_CPU_INLINE void AddTwos(const Register<16>& x, const Register<16>& y, Register<16>* sum) {
  *sum = __builtin_shufflevector(x, y, 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29) +
         __builtin_shufflevector(x, y, 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31);
}

// The first two of each four neighbours of x, then those of y, added to the last two likewise.
CONVENE_CPU_INLINE void AddPairs(const Register<8>& x, const Register<8>& y, Register<8>* sum) {
  *sum = __builtin_shufflevector(x, y, 0, 1, 8, 9, 4, 5, 12, 13) +
         __builtin_shufflevector(x, y, 2, 3, 10, 11, 6, 7, 14, 15);
}
CONVENE_CPU_INLINE void AddPairs(const Register<16>& x, const Register<16>& y, Register<16>* sum) {
  *sum = __builtin_shufflevector(x, y, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29) +
         __builtin_shufflevector(x, y, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
}

// The lanes' lower half and their upper half, added.
template <int kLanes>
CONVENE_CPU_INLINE void AddHalves(const Register<kLanes>& x, Register<kLanes / 2>* sum) {
  Register<kLanes / 2> high;
  __builtin_memcpy(sum, &x, sizeof(high));
  __builtin_memcpy(&high, reinterpret_cast<const float*>(&x) + kLanes / 2, sizeof(high));
  *sum += high;
}

// The sum of each register's lanes, in one order whatever the other registers hold. Four together
// take half as long again as one alone.
template <int kLanes>
CONVENE_CPU_INLINE void SumsOf(const Register<kLanes>& w, const Register<kLanes>& x,
                               const Register<kLanes>& y, const Register<kLanes>& z,
                               Register<4>* sums) {
  Register<kLanes> wx, yz, all;
  AddTwos(w, x, &wx);
  AddTwos(y, z, &yz);
  // Of each four neighbours, wx has w, x, w, x, and yz likewise.
  AddPairs(wx, yz, &all);
  if constexpr (kLanes == 16) {
    Register<8> half;
    AddHalves<16>(all, &half);
    AddHalves<8>(half, sums);
  } else {
    AddHalves<8>(all, sums);
  }
}

}  // namespace convene::worker::cpu

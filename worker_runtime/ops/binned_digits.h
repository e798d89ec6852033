// PURE. The arithmetic of sums that no order and no grouping changes, the same on every device.
//
// Binned sums, of floats: after Demmel and Nguyen ("Fast Reproducible Floating-Point Summation",
// ARITH 2013) and Ahrens, Demmel and Nguyen ("Algorithms for Efficient Reproducible Floating Point
// Summation", ACM TOMS 46(3), 2020), here in whole numbers. The exponents of floats are cut into
// bins of `bits` each, whose borders no data move: bin k has the unit u(k) = 2^(bits k - 127), and
// a number of bin k is below u(k + 1). With k the highest bin of any summand, a sum is two whole
// numbers: of each summand the digits in bin k (a multiple of u(k)), and those in bin k - 1. What a
// summand has below u(k - 1) is cut off. A summand's digits in a bin depend on that summand alone,
// and k is a maximum: so the result is a function of the set of summands. Where k rises, the digits
// of bin k move down, and those below are dropped, as if k had been known before.
//
// Each summand loses less than u(k - 1), and the largest one, m, is at least u(k): so n summands
// lose less than n 2^-bits m together (in bin 0: n 2^-(bits + 127)). A plain sum in fp32 may lose
// (n - 1) 2^-24 times the sum of the magnitudes (Higham, "Accuracy and Stability of Numerical
// Algorithms", section 4.2): never less for up to 64 summands, and for more where this sum is above
// n / 64 m.
//
// Exact sums, of doubles: Kulisch's long accumulator with its carries saved (Collange, Defour,
// Graillat, Iakymchuk, "Numerical reproducibility for the parallel reduction on multi- and
// many-core architectures", Parallel Computing 49, 2015). Digits of 20 bits from 2^-300 up to 2^300
// are whole numbers in doubles, so their own sums are exact, in any order, up to 2^33 summands.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

#include "worker_runtime/device/dtype.h"

namespace convene::worker {

// The most summands of one binned sum: bins have at least 16 bits.
inline constexpr int64_t kBinnedSummandsMax = int64_t{1} << 15;

// Bits of a bin, so that sums of so many digits stay in an int32_t. REQUIRES: 1 <= summands <=
// kBinnedSummandsMax.
constexpr int BinBits(int64_t summands) {
  return 31 - static_cast<int>(std::bit_width(static_cast<uint64_t>(summands) - 1));
}

// Also inlined into the clones of cpu/simd.h.
#define CONVENE_DIGITS_INLINE CONVENE_HOST_DEVICE __attribute__((always_inline)) inline

template <typename To, typename From>
CONVENE_DIGITS_INLINE To SameBits(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}

// One binned sum. All zeros: no summand yet.
struct BinnedDigits {
  int32_t high;
  int32_t low;
  int32_t bin;  // k; kNoNumberBin: a summand was infinite or NaN
};
inline constexpr int32_t kNoNumberBin = 255;

// For an exponent's field / bits without a division: exact, since fields are below 256.
CONVENE_DIGITS_INLINE int32_t InverseOf(int32_t bits) { return (65536 + bits - 1) / bits; }

// Its digits where the bin rises to `bin`, at least its own.
CONVENE_DIGITS_INLINE BinnedDigits Raised(const BinnedDigits& sum, int32_t bin) {
  const int32_t rise = bin - sum.bin;
  return {rise == 0 ? sum.high : 0, rise == 0 ? sum.low : (rise == 1 ? sum.high : 0), bin};
}

CONVENE_DIGITS_INLINE BinnedDigits Merged(const BinnedDigits& a, const BinnedDigits& b) {
  const int32_t bin = a.bin > b.bin ? a.bin : b.bin;
  const BinnedDigits x = Raised(a, bin);
  const BinnedDigits y = Raised(b, bin);
  return {x.high + y.high, x.low + y.low, bin};
}

// Every product and difference here is exact, or below every digit.
CONVENE_DIGITS_INLINE BinnedDigits DigitsPlus(const BinnedDigits& sum, float x, int32_t bits,
                                              int32_t inverse) {
  const auto field = static_cast<int32_t>((SameBits<uint32_t>(x) >> 23) & 255);
  const bool is_number = field != 255;
  const int32_t own = is_number ? (field * inverse) >> 16 : kNoNumberBin;
  const int32_t bin = own > sum.bin ? own : sum.bin;
  const int32_t last = (254 * inverse) >> 16;
  const int32_t place = bin < last ? bin : last;
  const float scaled = (is_number ? x : 0.0f) * SameBits<float>((254 - bits * place) << 23);
  const auto high = static_cast<int32_t>(scaled);
  const float rest = scaled - static_cast<float>(high);
  const auto low = static_cast<int32_t>(rest * SameBits<float>((127 + bits) << 23));
  const BinnedDigits kept = Raised(sum, bin);
  return {kept.high + high, kept.low + low, bin};
}

CONVENE_DIGITS_INLINE float FloatOf(const BinnedDigits& sum, int32_t bits) {
  const bool is_number = sum.bin != kNoNumberBin;
  const int64_t exponent = int64_t{bits} * ((is_number ? sum.bin : 0) - 1) - 127;
  const auto radix = SameBits<double>(int64_t{1023 + bits} << 52);
  const double value = static_cast<double>(sum.high) * radix + static_cast<double>(sum.low);
  return is_number ? static_cast<float>(value * SameBits<double>((1023 + exponent) << 52))
                   : SameBits<float>(0x7fc00000u);
}

inline constexpr int kExactDigits = 30;
inline constexpr int kExactDigitBits = 20;
inline constexpr int kExactLowest = -300;  // the exponent of the first digit's unit

// The power of two that is the unit of a digit, or with -1 its inverse.
CONVENE_DIGITS_INLINE double ExactUnit(int digit, int sign = 1) {
  return SameBits<double>(int64_t{1023 + sign * (kExactLowest + kExactDigitBits * digit)} << 52);
}

// digits: (kExactDigits). A double has bits in at most four of them. Bits below the digits are cut
// off, a number above them counts as infinite; NaN stays NaN.
CONVENE_HOST_DEVICE inline void AddExactly(double x, double* digits) {
  const auto field = static_cast<int>((SameBits<uint64_t>(x) >> 52) & 2047);
  const int first = field - 1023 - kExactLowest;
  if (first < 0) return;
  const int highest = first / kExactDigitBits;
  if (highest >= kExactDigits) {
    digits[kExactDigits - 1] += x * SameBits<double>(int64_t{2047} << 52);
    return;
  }
  for (int i = highest; i >= 0 && i > highest - 4; --i) {
    const auto digit = static_cast<double>(static_cast<int32_t>(x * ExactUnit(i, -1)));
    digits[i] += digit;
    x -= digit * ExactUnit(i);
  }
}

// The same bits for the same digits.
CONVENE_HOST_DEVICE inline double RoundExactly(const double* digits) {
  double sum = 0;
  for (int i = 0; i < kExactDigits; ++i) sum += digits[i] * ExactUnit(i);
  return sum;
}

#undef CONVENE_DIGITS_INLINE

}  // namespace convene::worker

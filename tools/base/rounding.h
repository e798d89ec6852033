// PURE. Whole units.
#pragma once

#include <cstdint>

namespace convene {

// How many units hold `amount`. REQUIRES: 0 <= amount, 0 < unit, amount + unit <= 2^63.
constexpr int64_t CeilDivide(int64_t amount, int64_t unit) { return (amount + unit - 1) / unit; }

// The smallest multiple of `unit` that holds `amount`. REQUIRES: as above, and that it fits.
constexpr int64_t RoundUp(int64_t amount, int64_t unit) { return CeilDivide(amount, unit) * unit; }

}  // namespace convene

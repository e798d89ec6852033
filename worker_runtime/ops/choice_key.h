// PURE. The order in which a router chooses among experts, and among groups of them.
#pragma once

#include <cstdint>
#include <cstring>

#include "worker_runtime/device/dtype.h"

namespace convene::worker {

// A key that rises with the score. Of equal scores the lower number has the greater key, so that
// every rank and every device chooses alike. A NaN counts as the lowest score. Never 0, which users
// take for what cannot be chosen.
CONVENE_HOST_DEVICE inline uint64_t ChoiceKey(float score, int number) {
  constexpr uint32_t kSign = 0x80000000u;
  constexpr uint32_t kLowest = 0xff800000u;  // minus infinity
  const float positive_zero = score + 0.0f;  // -0 equals 0
  uint32_t bits = kLowest;
  if (score == score) std::memcpy(&bits, &positive_zero, sizeof(bits));
  const uint32_t rising = (bits & kSign) != 0 ? ~bits : bits | kSign;
  return (uint64_t{rising} << 32) | ~static_cast<uint32_t>(number);
}

// The number that the key was made of.
CONVENE_HOST_DEVICE inline int ChosenNumber(uint64_t key) {
  return static_cast<int>(~static_cast<uint32_t>(key));
}

}  // namespace convene::worker

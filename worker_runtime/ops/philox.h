// PURE. Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"): random
// bits that are a function of a counter and a key, so that nobody has to draw them in an order.
#pragma once

#include <cstdint>

#include "worker_runtime/device/dtype.h"

namespace convene::worker {

struct PhiloxCounter {
  uint32_t words[4];

  CONVENE_HOST_DEVICE uint32_t operator[](int i) const { return words[i]; }
};

CONVENE_HOST_DEVICE inline PhiloxCounter Philox(PhiloxCounter counter, uint64_t key) {
  uint32_t key0 = static_cast<uint32_t>(key);
  uint32_t key1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53} * counter[0];
    const uint64_t product1 = uint64_t{0xCD9E8D57} * counter[2];
    counter = {{static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key0,
                static_cast<uint32_t>(product1),
                static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key1,
                static_cast<uint32_t>(product0)}};
    key0 += 0x9E3779B9;
    key1 += 0xBB67AE85;
  }
  return counter;
}

// In (0, 1): never 0, whose logarithm is infinite.
inline double OpenUnit(uint32_t high, uint32_t low) {
  const uint64_t bits = (uint64_t{high} << 32 | low) >> 11;
  return (static_cast<double>(bits) + 0.5) * 0x1.0p-53;
}

}  // namespace convene::worker

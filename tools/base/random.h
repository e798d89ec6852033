// Randomness from the kernel, for identities and jitter. Never for data order or weights: these
// come from seeds.
#pragma once

#include <cstdint>

namespace convene {

// Never 0. getrandom(2).
uint64_t RandomU64();
// In [0, 1).
double RandomFraction();

}  // namespace convene

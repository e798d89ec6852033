// PURE. IEEE 754 binary16, as files of weights have it: it is read, and nothing computes in it.
#pragma once

#include <cstdint>

namespace convene::worker {

struct Float16 {
  uint16_t bits;
  // Exact. A number's exponent is moved by multiplication, which also makes subnormal ones normal
  // (IEEE 754-2019, table 3.5: biases 15 and 127).
  explicit operator float() const {
    const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
    const uint32_t rest = static_cast<uint32_t>(bits & 0x7fffu) << 13;
    const bool is_finite = (bits & 0x7c00u) != 0x7c00u;
    const uint32_t moved =
        is_finite ? __builtin_bit_cast(uint32_t, __builtin_bit_cast(float, rest) * 0x1p112f)
                  : rest | 0x7f800000u;
    return __builtin_bit_cast(float, moved | sign);
  }
};

}  // namespace convene::worker

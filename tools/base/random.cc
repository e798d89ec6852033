#include "tools/base/random.h"

#include <sys/random.h>

#include "tools/base/check.h"

namespace convene {

uint64_t RandomU64() {
  uint64_t value = 0;
  while (value == 0) {
    CONVENE_CHECK(getrandom(&value, sizeof(value), 0) == sizeof(value));
  }
  return value;
}

double RandomFraction() { return static_cast<double>(RandomU64() >> 11) * 0x1.0p-53; }

}  // namespace convene

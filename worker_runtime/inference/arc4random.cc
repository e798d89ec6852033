// Two functions of the C library that libevent's archive wants (for its DNS, which nothing here
// uses). glibc has them since 2.36: with these the program runs on older ones too.
#include <sys/random.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "tools/base/check.h"

extern "C" {

void arc4random_buf(void* buffer, size_t size) noexcept {
  auto* const bytes = static_cast<char*>(buffer);
  for (size_t done = 0; done < size;) {
    const ssize_t n = getrandom(bytes + done, size - done, 0);
    CONVENE_CHECK(n > 0);
    done += static_cast<size_t>(n);
  }
}

uint32_t arc4random() noexcept {
  uint32_t number = 0;
  arc4random_buf(&number, sizeof(number));
  return number;
}

}  // extern "C"

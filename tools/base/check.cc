#include "tools/base/check.h"

#include <cstdio>
#include <cstdlib>

namespace convene::internal {

void CheckFailed(const char* file, int line, const char* condition) {
  std::fprintf(stderr,
               "%s:%d: internal error: expected %s. This is a bug in Convene; please report it "
               "with the lines above.\n",
               file, line, condition);
  std::abort();
}

}  // namespace convene::internal

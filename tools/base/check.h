// CONVENE_CHECK: for our own broken invariants, never for faults of a network, disk, child or user.
#pragma once

namespace convene::internal {
// Prints the condition, its place and a request to report the bug, then aborts.
[[noreturn]] void CheckFailed(const char* file, int line, const char* condition);
}  // namespace convene::internal

#define CONVENE_CHECK(condition)                                        \
  do {                                                                  \
    if (__builtin_expect(!(condition), 0))                              \
      ::convene::internal::CheckFailed(__FILE__, __LINE__, #condition); \
  } while (false)

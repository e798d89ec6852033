// PURE. Targets that are no tokens: all are below 0, and the loss counts none of them.
#pragma once

#include <cstdint>

namespace convene::worker {

// The token is there, and others may see it, but what follows it is not learned.
inline constexpr int32_t kIgnoredTarget = -1;
// There is no token but padding, which nothing that counts sees: experts need not see it either.
inline constexpr int32_t kPaddingTarget = -2;

}  // namespace convene::worker

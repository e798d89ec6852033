// PURE. Tokens as frequent as those of a text, for benches: ops that gather by token are at their
// worst when one token is many.
#pragma once

#include <cmath>
#include <cstdint>

namespace convene::worker {

// The token at `share` (0 to below 1) of a text, its most frequent tokens first: about Zipf's law.
// Of 128256 tokens the first is one in 17, and half of a text is made of 357.
inline int32_t SkewedToken(double share, int vocabulary) {
  return static_cast<int32_t>(std::pow(vocabulary + 1.0, share)) - 1;
}

}  // namespace convene::worker

// PURE. The bias of a router (ParameterSlice::balances) that is to be rounded to bf16.
//
// All of it may lie far from zero and close together: GLM 4.5's biases are from 6.8 to 7.1, where
// bf16 has steps of 0.03. A router chooses the experts, and the groups, with the largest sums of
// score and bias, and weighs them by the scores alone. So no choice changes when all experts'
// biases lose the same number, and about zero bf16 keeps what tells them apart.
#pragma once

#include <numeric>

#include "absl/types/span.h"

namespace convene::worker {

// Takes the mean away. bias: of all experts of one router.
inline void CentreBias(absl::Span<float> bias) {
  const double mean =
      std::accumulate(bias.begin(), bias.end(), 0.0) / static_cast<double>(bias.size());
  for (float& of_expert : bias) of_expert = static_cast<float>(of_expert - mean);
}

}  // namespace convene::worker

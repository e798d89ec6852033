// Several models of one shape.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker_runtime/weights/open_weights.h"

namespace convene::worker {

struct TensorDifference {
  std::string name;
  double largest = 0;  // of |a - b|; infinite where one of the two is no number
  int64_t row = 0;     // where
  int64_t column = 0;
};

// Both functions: InvalidArgument for weights of different shapes. Memory is some hundred MiB.

// The tensors that differ, the largest difference first.
absl::StatusOr<std::vector<TensorDifference>> CompareWeights(const Weights& a, const Weights& b);

// The mean of each element, summed in fp64, with the tokenizer of the first. REQUIRES: not empty.
absl::StatusOr<Weights> AverageWeights(std::vector<Weights> all);

}  // namespace convene::worker

// `convene-train evaluate`: `convene evaluate` where there are numeric libraries.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace convene::worker {

// `arguments`: behind the word `evaluate`. Returns the exit code; a line for each file goes to
// stdout. Errors: the flags', the model's, the files', each with the path.
absl::StatusOr<int> EvaluateCommand(const std::vector<std::string>& arguments);

}  // namespace convene::worker

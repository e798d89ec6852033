// `convene-train generate`: `convene generate` where there are numeric libraries.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace convene::worker {

// `arguments`: behind the word `generate`. Returns the exit code. Answers go to stdout, or into the
// file that the flags name. Errors: the flags', the model's, the tokenizer's, the prompts', and
// those of a full disk, each with the path.
absl::StatusOr<int> GenerateCommand(const std::vector<std::string>& arguments);

}  // namespace convene::worker

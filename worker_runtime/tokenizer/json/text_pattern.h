// The "pattern" of Split and Replace: a text or a regular expression.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "worker_runtime/tokenizer/json/json_node.h"
#include "worker_runtime/tokenizer/split_pattern.h"

namespace convene::worker {

// Matches exactly `text`, left to right without overlap. REQUIRES: not empty.
std::unique_ptr<SplitPattern> MakeLiteralPattern(std::string text);

// {"String": text} or {"Regex": expression}. InvalidArgument: neither, or no regular expression;
// Unimplemented: an empty text.
absl::StatusOr<std::unique_ptr<SplitPattern>> ReadPattern(const JsonNode& pattern);

}  // namespace convene::worker

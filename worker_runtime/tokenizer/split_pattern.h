// Cuts text into pieces by a regular expression, as pre-tokenizers do.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace convene::worker {

struct TextRange {
  size_t begin = 0, end = 0;  // bytes
  friend bool operator==(const TextRange&, const TextRange&) = default;
};

// Read-only and thread-safe.
class SplitPattern {
 public:
  virtual ~SplitPattern() = default;

  // Appends each match of the pattern in `text`, left to right, without empty ones. `text` must be
  // UTF-8. Linear for the known patterns.
  virtual void FindAll(absl::string_view text, std::vector<TextRange>* matches) const = 0;
};

// The patterns of GPT-2, cl100k and Llama 3, Qwen, o200k, tekken and DeepSeek run by hand-written
// scanners (recognised by their text); any other one by PCRE2. InvalidArgument: no regular
// expression that PCRE2 takes, with its words and the place.
absl::StatusOr<std::unique_ptr<SplitPattern>> MakeSplitPattern(const std::string& regex);

}  // namespace convene::worker

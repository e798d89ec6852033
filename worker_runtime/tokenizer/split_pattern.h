// Cuts text into pieces by a regular expression, as pre-tokenizers do.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker_runtime/tokenizer/pattern/dialect.h"

namespace convene::worker {

struct TextRange {
  size_t begin = 0, end = 0;  // bytes
  friend bool operator==(const TextRange&, const TextRange&) = default;
};

// Read-only and thread-safe.
class SplitPattern {
 public:
  virtual ~SplitPattern() = default;

  // Appends the next matches of the pattern in `text`, left to right, without empty ones: those
  // that begin at byte `begin` or later, at most `limit`. Returns where to look on, which is
  // text.size() after the last one. Many calls, each with what the one before returned, find what
  // one call finds. `text` must be UTF-8, and `begin` the beginning of a character; what is no
  // UTF-8 gives some ranges within the text for the known patterns. Linear for the known patterns.
  // REQUIRES: limit > 0, begin <= text.size().
  virtual size_t FindSome(absl::string_view text, size_t begin, size_t limit,
                          std::vector<TextRange>* matches) const = 0;

  // The pattern that finds the same matches in this text fastest: often this one itself. The other
  // one lives as long as this one.
  virtual const SplitPattern& For(absl::string_view /*text*/) const { return *this; }

  // Calls take(match) for each match of the pattern in `text`. It finds them in groups, so that the
  // matches in a long text need little memory.
  template <typename Take>
  void ForEach(absl::string_view text, std::vector<TextRange>* buffer, const Take& take) const {
    constexpr size_t kAtOnce = 512;
    const SplitPattern& pattern = For(text);
    for (size_t at = 0; at < text.size();) {
      buffer->clear();
      at = pattern.FindSome(text, at, kAtOnce, buffer);
      for (const TextRange& match : *buffer) take(match);
    }
  }
};

// The patterns of GPT-2, cl100k and Llama 3, Qwen, o200k, tekken, DeepSeek and Cohere's digits run
// by hand-written scanners (recognised by their text; scanners.h). Any other one is translated from
// its dialect and runs by PCRE2 (pcre_pattern.h).
//
// InvalidArgument: no regular expression, with the place. Unimplemented: a part that is not
// translated, by name; a pattern that may match the empty text.
absl::StatusOr<std::unique_ptr<SplitPattern>> MakeSplitPattern(const std::string& regex,
                                                               PatternDialect dialect);

}  // namespace convene::worker

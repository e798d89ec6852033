// PURE. Tokens as text in which a reader sees what counts in the loss.
#pragma once

#include <string>

#include "absl/types/span.h"
#include "worker_runtime/tokenizer/tokenizer.h"

namespace convene::worker {

enum class MarkStyle {
  kTerminal,  // green and underlined, by ECMA-48's SGR sequences
  kPlain      // between {+ and +}, as wdiff marks what is new
};

// The text of `ids`, special tokens with their text, at most about `longest` bytes and then "...".
// `counted`: empty when all count, else one value for each id. Control characters other than the
// line's end and the tab come out as \x1b and so on: the text cannot speak to a terminal. Bytes
// that are no UTF-8 come out as '?'.
std::string MarkCounted(const Tokenizer& tokenizer, absl::Span<const int32_t> ids,
                        absl::Span<const uint8_t> counted, MarkStyle style, size_t longest);

}  // namespace convene::worker

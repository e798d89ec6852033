#include "tools/base/control_sequences.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace convene {

size_t SequenceLength(absl::string_view text) {
  if (!absl::StartsWith(text, "\x1B[")) return 0;
  const size_t last =
      std::find_if(text.begin() + 2, text.end(), [](char c) { return c < ' ' || c > '?'; }) -
      text.begin();
  return last < text.size() && text[last] >= '@' && text[last] <= '~' ? last + 1 : 0;
}

std::string WithoutSequences(absl::string_view text) {
  std::string plain;
  while (!text.empty()) {
    // An escape that begins no sequence stays.
    const size_t next = std::min(text.find('\x1B', 1), text.size());
    const size_t sequence = SequenceLength(text);
    absl::StrAppend(&plain, text.substr(sequence, next - sequence));
    text.remove_prefix(next);
  }
  return plain;
}

}  // namespace convene

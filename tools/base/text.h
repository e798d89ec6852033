// Small text decisions that many rooms share.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace convene {

// The candidate nearest to `word` by edit distance (dashes and underscores alike), or "" when none
// is near enough (more than a third of the word, at least 2, would have to change). For "unknown
// key, did you mean ...?".
std::string ClosestMatch(absl::string_view word, const std::vector<std::string>& candidates);

// "a, b, c" of at most `limit` items, then " and N more".
std::string JoinCapped(const std::vector<std::string>& items, size_t limit);

// A character at the beginning of a text, or bytes that are none.
struct Utf8Character {
  uint8_t length = 0;  // bytes
  bool is_valid = false;
};

// The first character of `text`. An invalid one is the maximal subpart of a character (Unicode 15,
// section 3.9, table 3-8), which is what Rust's from_utf8_lossy and Python's "replace" make one
// U+FFFD of. REQUIRES: not empty.
Utf8Character FirstCharacter(absl::string_view text);

// At most `longest` bytes of `text`, cut between two characters; each byte that is not UTF-8
// becomes '?'. For text from outside that goes to a terminal or into a protobuf string: a message
// with another byte in a string does not arrive.
std::string Utf8(absl::string_view text, size_t longest = absl::string_view::npos);

// Utf8(text), with '?' for each control character too: a name or a value from outside must not
// steer the terminal that it is shown in.
std::string Printable(absl::string_view text);

// The same of each line of a text.
std::string PrintableLines(absl::string_view text);

// "1.5 GiB", "312 KiB", "7 B".
std::string HumanBytes(double bytes);

}  // namespace convene

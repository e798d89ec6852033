// PURE. A set of characters as PCRE2 writes it.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace convene::worker {

struct CharacterRange {
  char32_t first = 0, last = 0;
};

// PCRE2 has unions and complements of ranges and properties as one step of its machine ("[^a-z]").
// An intersection and other sets beyond them become a group with lookahead, which is slower.
class CharacterSet {
 public:
  // No character.
  CharacterSet() = default;
  static CharacterSet Of(char32_t first, char32_t last);
  static CharacterSet Of(std::vector<CharacterRange> ranges);
  // `inside`: as it stands in a set of PCRE2, such as "\p{Lu}"; `outside` its complement, "\P{Lu}".
  static CharacterSet OfProperty(absl::string_view inside, absl::string_view outside);

  CharacterSet Complement() const;
  CharacterSet Or(const CharacterSet& other) const;
  CharacterSet And(const CharacterSet& other) const;

  // A pattern that matches one character of the set, and takes a quantifier.
  std::string Regex() const;

 private:
  bool is_plain() const { return group_.empty() && !is_negated_; }
  bool is_empty() const { return is_plain() && properties_.empty() && ranges_.empty(); }

  // The union of these two, or its complement; properties first, as they hold the most.
  std::string properties_;
  std::vector<CharacterRange> ranges_;
  bool is_negated_ = false;
  std::string complement_;  // where all of it is one property: what stands for its complement
  std::string group_;       // not empty: instead of all that
};

}  // namespace convene::worker

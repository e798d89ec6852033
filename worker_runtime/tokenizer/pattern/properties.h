// PURE. The named sets of characters in each dialect, with the characters that its own program has
// in them: both have Unicode 16, PCRE2 of Debian 12 has 14 (unicode_changes.h).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "worker_runtime/tokenizer/pattern/character_set.h"
#include "worker_runtime/tokenizer/pattern/dialect.h"

namespace convene::worker {

struct NamedSet {
  CharacterSet set;
  // Has each character in whatever case it has, or none: (?i) adds nothing to it.
  bool is_without_case = false;
};

// `\p{name}`: a general category, a script or one of a few properties, by the name that Unicode has
// for it; upper and lower case, spaces, '_' and '-' are alike. Rust also has "sc=..." and "gc=...".
std::optional<NamedSet> FindProperty(absl::string_view name, const PatternRules& rules);

// `[:name:]` within a set.
std::optional<NamedSet> FindPosixSet(absl::string_view name, const PatternRules& rules);

// `\w`. Oniguruma's has six more characters (such as U+00BD) where it stands outside of a set.
CharacterSet WordSet(const PatternRules& rules, bool in_set);

// For the comparison with the originals: all names that FindProperty and FindPosixSet know.
std::vector<std::string> KnownProperties();
std::vector<std::string> KnownPosixSets();

}  // namespace convene::worker

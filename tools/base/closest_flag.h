// PURE. The flag or key that a person may have meant.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace convene {

// For "did you mean ...?": "--a", or "--a or --b". Dashes and underscores are alike. In this order:
// the candidate whose initials are `word` ("--lr"); the candidates that have each word of `word`,
// whole or its beginning, and of these the ones with the fewest words, if they are three at most
// ("--vocab-size": "--vocabulary-size"); ClosestMatch (text.h), but never "--x" for "--no-x". "":
// none of these.
std::string ClosestFlag(absl::string_view word, const std::vector<std::string>& candidates);

}  // namespace convene

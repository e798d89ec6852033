// PURE. Patterns of other programs in the words of PCRE2.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker_runtime/tokenizer/pattern/dialect.h"

namespace convene::worker {

// A pattern that PCRE2 (UTF, UCP, newline = LF) matches where the dialect's own program matches
// `regex`, and nowhere else. Nothing is copied that is not known to mean the same: README.md lists
// what is translated, and golden/ has what the originals match. Groups capture nothing.
//
// Unimplemented: a part that is not translated, by name, with its place. InvalidArgument: the
// original refuses it, too, or it is no UTF-8.
absl::StatusOr<std::string> InWordsOfPcre(absl::string_view regex, const PatternRules& rules);

}  // namespace convene::worker

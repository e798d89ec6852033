// Split patterns that have no scanner, run by PCRE2 with its compiler to machine code.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "worker_runtime/tokenizer/split_pattern.h"

namespace convene::worker {

// `regex` as Oniguruma (Hugging Face's tokenizers) and Rust's fancy-regex (tiktoken) read it, in
// PCRE2's words: \s is White_Space (PCRE2 has U+180E in it), \w is letters, marks, decimal numbers
// and connectors (PCRE2 leaves out marks), and a set within a set is its characters. `$` is the
// text's end, as in Rust; Oniguruma's `$` is also before a newline.
//
// Unimplemented: a negated set within a set, an intersection of sets (&&).
absl::StatusOr<std::string> InWordsOfPcre(const std::string& regex);

// Errors: see MakeSplitPattern. Unimplemented too: a pattern that may match the empty text, at
// which Hugging Face's tokenizers cut.
//
// PCRE2 goes back over a text as the pattern asks, which can take for ever. It gives up after
// ten million steps at one place; the next 4,096 bytes are one match then.
absl::StatusOr<std::unique_ptr<SplitPattern>> MakePcrePattern(const std::string& regex);

}  // namespace convene::worker

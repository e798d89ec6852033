// Split patterns that have no scanner, run by PCRE2 with its compiler to machine code.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "worker_runtime/tokenizer/pattern/dialect.h"
#include "worker_runtime/tokenizer/split_pattern.h"

namespace convene::worker {

// Errors: InWordsOfPcre's (pattern/translate.h). Unimplemented too: what PCRE2 does not take, such
// as a lookbehind of any length; a pattern that may match the empty text, at which Hugging Face's
// tokenizers cut.
//
// PCRE2 goes back over a text as the pattern asks, which can take for ever. It gives up after
// ten million steps at one place; the next 4,096 bytes are one match then.
absl::StatusOr<std::unique_ptr<SplitPattern>> MakePcrePattern(const std::string& regex,
                                                              PatternDialect dialect);

}  // namespace convene::worker

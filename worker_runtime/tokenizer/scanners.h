// Hand-written scanners for the patterns that most tokenizers use: ten times as fast as a regular
// expression's engine, and linear whatever the text. scanners_test.cc compares each with PCRE2.
#pragma once

#include <memory>
#include <vector>

#include "absl/strings/string_view.h"
#include "worker_runtime/tokenizer/split_pattern.h"

namespace convene::worker {

// The texts of the patterns, as tiktoken, mistral-common and tokenizer.json files have them.
// Files in the field write the same language in several ways; KnownPatterns() lists them all.
extern const absl::string_view kGpt2Pattern;
extern const absl::string_view kCl100kPattern;  // tiktoken's present form
extern const absl::string_view kLlama3Pattern;  // also cl100k in tokenizer.json
extern const absl::string_view kQwen2Pattern;
extern const absl::string_view kO200kPattern;  // also Llama 4
extern const absl::string_view kTekkenPattern;
extern const absl::string_view kCohereDigitsPattern;  // one step of Command A's, and of AFMoE's

// Every pattern that has a scanner.
std::vector<absl::string_view> KnownPatterns();

// The scanner of a known pattern, else null. cl100k's present form means something else to
// Oniguruma, which has no possessive intervals: none for it there. Cohere's digits have one there
// alone: \b is not the same to Rust.
std::unique_ptr<SplitPattern> MakeScanner(absl::string_view regex, PatternDialect dialect);

}  // namespace convene::worker

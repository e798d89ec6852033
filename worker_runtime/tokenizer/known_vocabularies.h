// The split patterns and special tokens that the tiktoken files of the world leave out.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "worker_runtime/tokenizer/special_tokens.h"

namespace convene::worker {

struct KnownVocabulary {
  absl::string_view name;
  int tokens = 0;       // in the file
  uint64_t digest = 0;  // TokensDigest of them
  absl::string_view pattern;
  std::vector<SpecialTokens::Token> special_tokens;
  absl::string_view begin_of_document;  // a special token; empty: the original puts none
  absl::string_view end_of_document;
  bool is_normalized_to_nfc = false;
};

// XXH3-64 of the tokens by rank.
uint64_t TokensDigest(const std::vector<std::string>& tokens);

// GPT-2 (also r50k), cl100k, o200k, Llama 3, Llama 4, Qwen. Null: none of these.
const KnownVocabulary* FindKnownVocabulary(size_t tokens, uint64_t digest);

// Their names, for messages.
std::vector<std::string> KnownVocabularyNames();

}  // namespace convene::worker

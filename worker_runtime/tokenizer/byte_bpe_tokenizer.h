// A tokenizer of a split pattern, byte level BPE and special tokens: tiktoken's kind.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker_runtime/tokenizer/special_tokens.h"
#include "worker_runtime/tokenizer/tokenizer.h"

namespace convene::worker {

struct ByteBpeParts {
  std::string kind;                 // Tokenizer::kind
  std::vector<std::string> tokens;  // the bytes of each id; empty for a special token
  std::string pattern;              // of MakeSplitPattern; text that it does not match vanishes
  std::vector<SpecialTokens::Token> special_tokens;
  std::vector<int32_t> prefix, suffix;
  std::optional<int32_t> end_of_document;
  bool is_normalized_to_nfc = false;  // the text, before it is split
};

// Encodes as tiktoken does: special tokens are cut from the text (SpecialText::kAsTokens only), the
// rest is split, each piece is a token or is merged by rank. Bytes that are no UTF-8 count as one
// U+FFFD for each maximal subpart. Decode puts these in the place of broken characters, too.
//
// InvalidArgument: ids that stand for two things or are negative; otherwise as ByteBpe::FromRanks
// and MakeSplitPattern.
absl::StatusOr<std::unique_ptr<Tokenizer>> MakeByteBpeTokenizer(ByteBpeParts parts);

}  // namespace convene::worker

// tokenizer_config.json beside a tokenizer.json: which token begins, ends and pads a text.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker_runtime/tokenizer/json/added_tokens.h"
#include "worker_runtime/tokenizer/json/json_node.h"
#include "worker_runtime/tokenizer/json/post_processor.h"

namespace convene::worker {

struct TokenizerConfig {
  // Texts of tokens; empty where the file does not name one.
  std::string bos, eos, pad;
  // Absent: as the post-processor has it.
  std::optional<bool> adds_bos, adds_eos;
};

// `config`: the whole file. InvalidArgument: a member of a wrong type.
absl::StatusOr<TokenizerConfig> ReadTokenizerConfig(const JsonNode& config);

// Makes `frame` begin with the bos token where adds_bos says so and not where it says no, and end
// with eos likewise: what transformers does with these settings. InvalidArgument: bos or eos is
// asked for, but not known to the tokenizer.
absl::Status ApplyTokenizerConfig(const TokenizerConfig& config, std::optional<int32_t> bos,
                                  std::optional<int32_t> eos, DocumentFrame* frame);

// The token that ends a document: the config's eos (`eos`); else the frame's single last token;
// else the only special token with one of the names that models commonly have for it.
std::optional<int32_t> FindEndOfDocument(std::optional<int32_t> eos, const DocumentFrame& frame,
                                         const AddedTokens& added);

}  // namespace convene::worker

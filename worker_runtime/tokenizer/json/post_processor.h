// The tokens around a whole document: the "post_processor" of a tokenizer.json
// (tokenizers/src/processors), and tokenizer_config.json beside it.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker_runtime/tokenizer/json/added_tokens.h"
#include "worker_runtime/tokenizer/json/json_node.h"
#include "worker_runtime/tokenizer/tokenizer_config.h"

namespace convene::worker {

struct AddedAround {
  std::vector<int32_t> prefix, suffix;
};

// `node`: the file's "post_processor", absent where that is null. InvalidArgument: among others an
// id that is not below `vocabulary_size`, with its place. Unimplemented: a template that does not
// have the text exactly once. REQUIRES: vocabulary_size > 0.
absl::StatusOr<AddedAround> ReadPostProcessor(const std::optional<JsonNode>& node,
                                              int vocabulary_size);

// Makes `frame` begin with `bos` where add_bos_token is true and not where it is false, and end
// with `eos` likewise, where transformers heeds these settings: with the tokenizer classes of
// Llama, Gemma, Cohere and GPT-NeoX, and where the config names no class. InvalidArgument: a token
// is to be added that the tokenizer does not have.
absl::Status ApplyVocabularyConfig(const VocabularyConfig& config, std::optional<int32_t> bos,
                                   std::optional<int32_t> eos, AddedAround* frame);

// The token that ends a document: the only special token with one of the names that models commonly
// have for it; else the config's `eos`; else the frame's single last token. A model made for
// conversations has the end of a turn as its `eos` ("<|eot_id|>", "<|im_end|>"), and still was
// trained on documents that end with the other.
std::optional<int32_t> FindEndOfDocument(std::optional<int32_t> eos, const AddedAround& frame,
                                         const AddedTokens& added);

}  // namespace convene::worker

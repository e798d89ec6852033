// The tokens that begin and end a document, as tokenizer_config.json beside a tokenizer.json has
// it.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "worker_runtime/tokenizer/json/added_tokens.h"
#include "worker_runtime/tokenizer/json/post_processor.h"
#include "worker_runtime/tokenizer/vocabulary_config.h"

namespace convene::worker {

// Makes `frame` begin with `bos` where add_bos_token is true and not where it is false, and end
// with `eos` likewise, as transformers does with these settings. InvalidArgument: a token is to be
// added that the tokenizer does not have.
absl::Status ApplyVocabularyConfig(const VocabularyConfig& config, std::optional<int32_t> bos,
                                   std::optional<int32_t> eos, AddedAround* frame);

// The token that ends a document: the only special token with one of the names that models commonly
// have for it; else the config's `eos`; else the frame's single last token. A model made for
// conversations has the end of a turn as its `eos` ("<|eot_id|>", "<|im_end|>"), and still was
// trained on documents that end with the other.
std::optional<int32_t> FindEndOfDocument(std::optional<int32_t> eos, const AddedAround& frame,
                                         const AddedTokens& added);

}  // namespace convene::worker

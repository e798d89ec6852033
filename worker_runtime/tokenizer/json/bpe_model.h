// The model "BPE": byte pair encoding with a list of merges, on characters or on bytes in GPT-2's
// spelling (tokenizers/src/models/bpe/model.rs).
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "worker_runtime/tokenizer/json/token_model.h"

namespace convene::worker {

// Unimplemented: "dropout" that is not 0. InvalidArgument: merges of tokens that the vocabulary
// does not have, and the like. An unknown character is dropped where "unk_token" is absent or not
// in the vocabulary.
absl::StatusOr<std::unique_ptr<TokenModel>> ReadBpeModel(const JsonNode& node,
                                                         const SpecialContents& specials);

}  // namespace convene::worker

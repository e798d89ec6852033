// The model "Unigram" (tokenizers/src/models/unigram/model.rs).
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "worker_runtime/tokenizer/json/token_model.h"

namespace convene::worker {

// `specials`: ReadModel's. InvalidArgument; Unimplemented: no "unk_id".
absl::StatusOr<std::unique_ptr<TokenModel>> ReadUnigramModel(const JsonNode& node,
                                                             const SpecialContents& specials);

}  // namespace convene::worker

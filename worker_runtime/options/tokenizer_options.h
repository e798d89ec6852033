// PURE. The settings that follow from how the data's ids are made, where nobody has said them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "worker_runtime/options/options.h"

namespace convene::worker {

// The ids of a run's data.
struct TokenIds {
  std::string made_by;               // for people: "the tokenizer gpt2/ (tokenizer.json (BPE))"
  int vocabulary_size = 0;           // one more than the largest id; 0: not known
  int document_vocabulary_size = 0;  // Tokenizer's; 0: not known
  std::optional<int32_t> end_of_document;
  uint64_t fingerprint = 0;  // of the tokenizer (TokenizerIdentity); 0: not known
};

// A vocabulary's size is rounded up to a multiple of it, so that matrices of logits have an even
// width and tensor-parallel ranks equal shares: 50257 becomes 50304, as in nanoGPT, llm.c and
// Megatron-LM (--make-vocab-size-divisible-by). Megatron-LM multiplies it by the number of
// tensor-parallel ranks; here another layout must not make another model.
inline constexpr int kVocabularyMultiple = 128;

// Fills in `model.vocabulary_size`, unless the user chose one, and `eod_token`, unless the user
// named one. Ids that fit into the default model's vocabulary leave it as it is. InvalidArgument:
// the chosen vocabulary has no room for a document's ids (the text names both, and a size that
// has); documents are to be told apart by the token that ends them, and there is none.
absl::Status ApplyTokenIds(const TokenIds& ids, TrainOptions* options);

}  // namespace convene::worker

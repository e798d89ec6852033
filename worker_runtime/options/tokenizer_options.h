// PURE. The settings that follow from the tokenizer, where nobody has said them.
#pragma once

#include "absl/status/status.h"
#include "worker_runtime/options/options.h"
#include "worker_runtime/tokenizer/tokenizer.h"

namespace convene::worker {

// A vocabulary's size is rounded up to a multiple of it, so that matrices of logits have an even
// width and tensor-parallel ranks equal shares: 50257 becomes 50304, as in nanoGPT, llm.c and
// Megatron-LM (--make-vocab-size-divisible-by). Megatron-LM multiplies by tp_size; here another
// layout must not make another model.
inline constexpr int kVocabularyMultiple = 128;

// Fills in `model.vocabulary_size`, unless the user chose one, and `eod_token`, unless the user
// named one. The byte tokenizer leaves the default model's 256. InvalidArgument: the chosen
// vocabulary has no room for the tokenizer's ids (the text names both, and a size that has);
// documents are to be packed by their last token, and the tokenizer names none.
absl::Status ApplyTokenizer(const Tokenizer& tokenizer, TrainOptions* options);

}  // namespace convene::worker

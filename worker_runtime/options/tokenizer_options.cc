#include "worker_runtime/options/tokenizer_options.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "tools/base/rounding.h"

namespace convene::worker {

absl::Status ApplyTokenizer(const Tokenizer& tokenizer, TrainOptions* options) {
  const int needed = tokenizer.vocabulary_size();
  const int rounded = static_cast<int>(RoundUp(int64_t{needed}, kVocabularyMultiple));
  int& vocabulary_size = options->model.vocabulary_size;
  if (!options->chose_vocabulary) vocabulary_size = std::max(vocabulary_size, rounded);
  if (vocabulary_size < needed) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the tokenizer ", options->tokenizer_path, " (", tokenizer.kind(), ") has ids up to ",
        needed - 1, ", but the vocabulary_size of ", options->model_name, " is ", vocabulary_size,
        ": give --vocabulary-size ", rounded, ", or a model or a tokenizer that fit together"));
  }
  if (!options->eod_token.has_value()) options->eod_token = tokenizer.end_of_document();
  if (options->packed_documents && options->chat_template.empty() &&
      !options->eod_token.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "packed_documents: the tokenizer ", options->tokenizer_path, " (", tokenizer.kind(),
        ") names no token that ends a document; give --eod-token with its id"));
  }
  return absl::OkStatus();
}

}  // namespace convene::worker

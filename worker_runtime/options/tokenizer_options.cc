#include "worker_runtime/options/tokenizer_options.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "tools/base/rounding.h"

namespace convene::worker {

absl::Status ApplyTokenIds(const TokenIds& ids, TrainOptions* options) {
  const int rounded = static_cast<int>(RoundUp(int64_t{ids.vocabulary_size}, kVocabularyMultiple));
  int& vocabulary_size = options->model.vocabulary_size;
  if (!options->chose_vocabulary) vocabulary_size = std::max(vocabulary_size, rounded);
  if (vocabulary_size < ids.document_vocabulary_size) {
    return absl::InvalidArgumentError(absl::StrCat(
        ids.made_by, " has ids up to ", ids.vocabulary_size - 1, ", but the vocabulary_size of ",
        options->model_name, " is ", vocabulary_size, ": give --vocabulary-size ", rounded,
        ", or a model and a tokenizer that fit together"));
  }
  if (!options->eod_token.has_value()) options->eod_token = ids.end_of_document;
  if (options->packed_documents && options->chat_template.empty() &&
      !options->eod_token.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("packed_documents: ", ids.made_by,
                     " names no token that ends a document; give --eod-token with its id"));
  }
  return absl::OkStatus();
}

}  // namespace convene::worker

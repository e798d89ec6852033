// Hugging Face's tokenizer.json, without their library.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker_runtime/tokenizer/tokenizer.h"

namespace convene::worker {

// Reads the text of a tokenizer.json (huggingface/tokenizers, version "1.0"); the ids are those of
// their version 0.23. `config_json`: the text of the tokenizer_config.json
// beside it, or empty; it names bos and eos and says whether they are added, and its
// added_tokens_decoder counts as in transformers: behind the file's own added tokens (AddedTokens).
//
// InvalidArgument: no JSON, or not a tokenizer. Unimplemented: a feature that we lack, by the name
// that it has in the file: the models WordPiece and WordLevel, dropout, and what README.md lists.
//
// "truncation" and "padding" are passed over: they shape batches. With SpecialText::kAsText,
// special added tokens are text, as with their encode_special_tokens; other added tokens are cut
// out all the same. Bytes that are no UTF-8 count as one U+FFFD per maximal subpart.
absl::StatusOr<std::unique_ptr<Tokenizer>> ReadTokenizerJson(absl::string_view json_text,
                                                             const std::string& config_json);

}  // namespace convene::worker

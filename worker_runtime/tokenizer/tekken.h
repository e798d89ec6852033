// tekken.json, the tokenizer files of Mistral's models since Nemo.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker_runtime/tokenizer/tokenizer.h"

namespace convene::worker {

// Whether a JSON text is a tekken.json rather than a tokenizer.json, by names in its first 4 KiB.
bool LooksLikeTekken(absl::string_view json);

// Ids as in mistral-common: special tokens first (those that the file names, filled up with
// <SPECIAL_n>), then tokens by rank, of which only as many count as default_vocab_size leaves room
// for. "<s>" is the prefix, "</s>" ends a document.
//
// InvalidArgument: no JSON, or damaged. Unimplemented: a version that mistral-common 1.13 does not
// know.
absl::StatusOr<std::unique_ptr<Tokenizer>> ReadTekken(absl::string_view json);

}  // namespace convene::worker

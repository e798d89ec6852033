// The tokenizer of a token file's ids.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "worker_runtime/data/store/token_source.h"
#include "worker_runtime/tokenizer/tokenizer.h"

namespace convene::launcher {

// `path`, or where that is empty the tokenizer that `source` names, with the compact vocabulary of
// `source` where it has one. It may be another one than the ids were made by: compare the
// fingerprints. InvalidArgument: neither names one, or the vocabulary is none of this tokenizer.
// Else as LoadTokenizer.
absl::StatusOr<std::unique_ptr<worker::Tokenizer>> LoadFileTokenizer(
    const worker::TokenSource& source, const std::string& path);

}  // namespace convene::launcher

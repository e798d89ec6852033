// Finds and reads a tokenizer by its path.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "worker_runtime/tokenizer/byte_tokenizer.h"
#include "worker_runtime/tokenizer/tokenizer.h"

namespace convene::worker {

// `path`: "byte" (or empty) for token = byte; a file: tokenizer.json, a tiktoken .model/.tiktoken,
// tekken.json, a SentencePiece .model, a GGUF file; or a model folder, in which tokenizer.json is
// looked for first, then tekken.json, then tokenizer.model (its content tells which of the two
// kinds it is), then tiktoken.model, then *.tiktoken; tokenizer_config.json and
// special_tokens_map.json beside it name the special tokens (ReadTokenizerConfig), and
// compact_vocabulary.json cuts its vocabulary (compact_vocabulary.h). A file's kind comes from its
// content, not from its name.
//
// NotFound: no such path, or a folder without a tokenizer (names what was looked for).
// InvalidArgument: damaged, or not a tokenizer, or a folder with several *.tiktoken. Unimplemented:
// a feature that we lack, by the name that it has in the file. Otherwise as tools/base/files.h. All
// with the path.
absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizer(const std::string& path);

}  // namespace convene::worker

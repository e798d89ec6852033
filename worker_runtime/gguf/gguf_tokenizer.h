// The vocabulary in a GGUF file, as the files of a model's folder that it was made from.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "worker_runtime/gguf/gguf_file.h"

namespace convene::worker {

struct GgufTokenizer {
  std::string file_name;    // "tokenizer.json", or of SentencePiece "tokenizer.model"
  std::string content;      // of that file
  std::string config_json;  // of a tokenizer_config.json: special tokens, and the chat template
};

// PURE. NotFound: the file has no vocabulary. Unimplemented, by its name: a vocabulary that is
// neither byte-level BPE nor SentencePiece's BPE, or byte-level BPE whose way of cutting words
// (tokenizer.ggml.pre) is absent or none of gpt-2, smollm, llama-bpe and qwen2, or
// SentencePieceModelOf's: the model's Hugging Face folder has it whole. InvalidArgument: as
// GgufFile's, and SentencePieceModelOf's.
absl::StatusOr<GgufTokenizer> TokenizerOf(const GgufFile& file);

// Whether `path` is a file that begins as a GGUF file does.
bool IsGgufFile(const std::string& path);

// TokenizerOf the file. Also GgufFile::Parse's errors, and those of tools/base/files.h; all with
// the path.
absl::StatusOr<GgufTokenizer> ReadGgufTokenizer(const std::string& path);

}  // namespace convene::worker

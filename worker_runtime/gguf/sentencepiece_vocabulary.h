// The vocabulary in a GGUF file whose tokenizer.ggml.model is "llama": SentencePiece's BPE.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "worker_runtime/gguf/gguf_file.h"

namespace convene::worker {

// PURE. The SentencePiece model (a serialized ModelProto, sentencepiece_model.proto) that the
// vocabulary was made from, as far as it decides about ids and texts: pieces with scores and types,
// the names of the tokens that begin and end a text, and the space before a text
// (tokenizer.ggml.add_space_prefix; it is there unless the file says no). Texts are not changed
// else, as in llama.cpp (llama-vocab.cpp, LLAMA_VOCAB_TYPE_SPM): rules that replace characters are
// not in such a file.
//
// NotFound, InvalidArgument: as GgufFile's; scores or types that are not as many as the tokens.
absl::StatusOr<std::string> SentencePieceModelOf(const GgufFile& file);

}  // namespace convene::worker

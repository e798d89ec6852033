// The vocabulary in a GGUF file whose tokenizer.ggml.model is "llama": SentencePiece's BPE.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "worker_runtime/gguf/gguf_file.h"

namespace convene::worker {

// Behind what a message says of a vocabulary that is not read here.
inline constexpr char kTokenizerInstead[] =
    ": take the tokenizer from the model's Hugging Face folder";

// PURE. The SentencePiece model (a serialized ModelProto, sentencepiece_model.proto) that the
// vocabulary was made from, as far as it decides about ids and texts: pieces with scores and types,
// the names of the tokens that begin and end a text, and the space before a text
// (tokenizer.ggml.add_space_prefix; it is there unless the file says no). Texts are not changed
// else, as in llama.cpp (llama-vocab.cpp, LLAMA_VOCAB_TYPE_SPM): rules that replace characters are
// not in such a file.
//
// There is one unknown piece. Of a file that names none by its type (llama.cpp's converter makes it
// a control token, where the folder has it among its added tokens) it is that of
// tokenizer.ggml.unknown_token_id, else "<unk>", else the first token, as in llama.cpp.
//
// NotFound, InvalidArgument: as GgufFile's; scores or types that are not as many as the tokens.
// Unimplemented: all scores are one, which llama.cpp's converter writes for a folder without a
// tokenizer.model; the order of merges is then not in the file.
absl::StatusOr<std::string> SentencePieceModelOf(const GgufFile& file);

}  // namespace convene::worker

// SentencePiece tokenizers: Llama 2, Mistral up to v7, AI21 J2.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker_runtime/tokenizer/tokenizer.h"

namespace convene::worker {

// Whether a file that begins with `bytes` (16 are enough) can be a SentencePiece model: its first
// field is a piece. A tiktoken file is text, and never is.
bool LooksLikeSentencePiece(absl::string_view bytes);

// A tokenizer that gives the ids of google/sentencepiece 0.2.3 for the model whose file holds
// `proto_bytes` (a serialized ModelProto); keeps nothing of them.
// `config_json`: the tokenizer_config.json beside it, or empty; its add_bos_token and add_eos_token
// count.
//
// InvalidArgument: not such a model, damaged, or one that SentencePiece refuses (see
// ParseModelFile), or a token is to be added that is no control piece. Unimplemented: a model of
// words or characters; a config with tokens that the model does not have.
//
// kind(): "SentencePiece (BPE)" or "SentencePiece (unigram)".
// Special tokens: the CONTROL pieces ("<s>", "[INST]") and the unknown piece. SentencePiece never
// makes them from text. With SpecialText::kAsTokens the text is cut at them, leftmost first and of
// those the longest, and each rest is a text of its own: it has its own dummy prefix, as
// mistral-common encodes the parts of a chat.
// prefix(): the beginning-of-text piece where it is a control piece, since Llama 2's and Mistral's
// programs put it before every text; not with add_bos_token false. suffix(): empty; with
// add_eos_token true the end-of-text piece. end_of_document(): that piece.
// Decode(): as SentencePieceProcessor::Decode; the unknown piece is its surface, " ⁇ ".
absl::StatusOr<std::unique_ptr<Tokenizer>> ReadSentencePiece(absl::string_view proto_bytes,
                                                             const std::string& config_json = "");

}  // namespace convene::worker

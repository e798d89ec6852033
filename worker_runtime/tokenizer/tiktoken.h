// tiktoken's vocabularies: Llama 3's and 4's tokenizer.model, Qwen's and OpenAI's *.tiktoken.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker_runtime/tokenizer/tokenizer.h"

namespace convene::worker {

// Whether a file begins as tiktoken's do: the base64 of a token, a space, a rank.
bool LooksLikeTiktoken(absl::string_view content);

// `content`: lines "base64(bytes) SP rank". `config_json` is the
// tokenizer_config.json beside it, or empty.
//
// The file has only the tokens. Its split pattern and special tokens come from
// known_vocabularies.h, where the tokens are exactly those of one of these. Of another vocabulary
// the config must name the pattern as "pat_str" (tiktoken's own name for it): a guessed pattern
// would give other ids than the model was trained with, and nobody would see it. The config's
// added_tokens_decoder names special tokens, in place of the known ones with the same ids;
// add_bos_token with bos_token decides about the prefix; eos_token ends a document of a vocabulary
// that is not a known one.
//
// InvalidArgument: damaged, or an unknown vocabulary without a pattern.
absl::StatusOr<std::unique_ptr<Tokenizer>> ReadTiktoken(absl::string_view content,
                                                        const std::string& config_json);

}  // namespace convene::worker

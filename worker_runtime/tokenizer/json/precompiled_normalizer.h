// The normalizer "Precompiled": SentencePiece's table of replacements, as Hugging Face's tokenizers
// apply it, which is not as SentencePiece does.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "worker_runtime/tokenizer/json/text_normalizer.h"

namespace convene::worker {

// `charsmap`: SentencePiece's precompiled_charsmap (charsmap.h) in base64. Each grapheme cluster of
// fewer than 6 bytes is looked up whole, else each of its characters; the shortest key that begins
// the looked-up text decides about all of it (tokenizers/src/normalizers/precompiled.rs).
// InvalidArgument: not of this form.
absl::StatusOr<std::unique_ptr<NormalizerStep>> ReadPrecompiled(const JsonNode& charsmap);

}  // namespace convene::worker

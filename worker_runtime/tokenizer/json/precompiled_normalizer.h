// The normalizer "Precompiled": SentencePiece's table of replacements, as Hugging Face's tokenizers
// apply it, which is not as SentencePiece does.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "worker_runtime/tokenizer/json/normalizer.h"

namespace convene::worker {

// `charsmap`: base64 of a little-endian 32-bit size, a double-array trie (Darts-clone) of so many
// bytes, and texts that each end in a zero byte. Each grapheme cluster of fewer than 6 bytes is
// looked up whole, else each of its characters; the shortest key that begins the looked-up text
// decides about all of it (spm_precompiled, tokenizers/src/normalizers/precompiled.rs).
// InvalidArgument: not of this form.
absl::StatusOr<std::unique_ptr<NormalizerStep>> ReadPrecompiled(const JsonNode& charsmap);

}  // namespace convene::worker

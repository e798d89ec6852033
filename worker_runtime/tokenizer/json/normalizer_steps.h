// The steps of a normalizer. Each is what the part of the same name in Hugging Face's tokenizers
// does (tokenizers/src/normalizers).
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "worker_runtime/tokenizer/json/json_node.h"
#include "worker_runtime/tokenizer/json/text_normalizer.h"

namespace convene::worker {

// The part `type` of a normalizer. InvalidArgument, Unimplemented.
absl::StatusOr<std::unique_ptr<NormalizerStep>> ReadNormalizerStep(const std::string& type,
                                                                   const JsonNode& node);

// The part "Replace", of a normalizer and of a decoder. InvalidArgument, Unimplemented.
absl::StatusOr<std::unique_ptr<NormalizerStep>> ReadReplace(const JsonNode& node);

// Unicode's normalization forms (UAX #15), by libutf8proc.
enum class UnicodeForm { kNfc, kNfd, kNfkc, kNfkd };
// The marks that are known: of Unicode 9, as in the crate of Hugging Face's tokenizers, or of 15,
// as in Python's unicodedata.
enum class UnicodeMarks { kOfUnicode9, kOfUnicode15 };
// n log n in the length of a run of marks, else linear. Text that is in the form already is found
// out quickly and left alone. Making a step takes some milliseconds (a table of all characters).
std::unique_ptr<NormalizerStep> MakeUnicodeForm(UnicodeForm form,
                                                UnicodeMarks marks = UnicodeMarks::kOfUnicode9);

// The part "Precompiled": SentencePiece's table of replacements, as Hugging Face's tokenizers apply
// it, which is not as SentencePiece does. `charsmap`: SentencePiece's precompiled_charsmap
// (charsmap.h) in base64. Each grapheme cluster of fewer than 6 bytes is looked up whole, else each
// of its characters; the shortest key that begins the looked-up text decides about all of it
// (tokenizers/src/normalizers/precompiled.rs). InvalidArgument: not of this form.
absl::StatusOr<std::unique_ptr<NormalizerStep>> ReadPrecompiled(const JsonNode& charsmap);

}  // namespace convene::worker

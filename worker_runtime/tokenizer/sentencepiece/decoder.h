// From the ids of a SentencePiece model back to text.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/types/span.h"
#include "worker_runtime/tokenizer/sentencepiece/model_file.h"
#include "worker_runtime/tokenizer/sentencepiece/normalizer.h"

namespace convene::worker {

// sentencepiece_processor.cc, Decode. PURE, read-only, thread-safe.
class Decoder {
 public:
  // `model` must outlive the decoder. `denormalizer` may be null.
  Decoder(const ModelFile& model, std::unique_ptr<Normalizer> denormalizer)
      : model_(model), denormalizer_(std::move(denormalizer)) {}

  // Tokenizer::Decode.
  std::string Decode(absl::Span<const int32_t> ids, bool show_specials) const;

  // Tokenizer::AppendTokenBytes.
  void AppendTokenBytes(int32_t id, std::string* bytes) const;

 private:
  // Null: there is no such id.
  const ModelPiece* PieceOf(int32_t id) const;

  const ModelFile& model_;
  std::unique_ptr<Normalizer> denormalizer_;
};

}  // namespace convene::worker

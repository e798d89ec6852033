// How a model spells characters that it has no piece for.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/strings/string_view.h"
#include "worker_runtime/tokenizer/sentencepiece/model_file.h"

namespace convene::worker {

// sentencepiece_processor.cc, PopulateSentencePieceText. PURE, read-only, thread-safe.
class UnknownText {
 public:
  explicit UnknownText(const ModelFile& model) : byte_fallback_(model.byte_fallback) {
    for (size_t i = 0; i < model.pieces.size(); ++i) {
      const ModelPiece& piece = model.pieces[i];
      const auto id = static_cast<int32_t>(i);
      if (piece.type == PieceType::kUnknown) id_ = id;
      if (piece.type == PieceType::kByte) bytes_[*ByteOfPiece(piece.text)] = id;
    }
  }

  // Appends the ids of `text`, which is not empty: the pieces of its bytes, or the unknown piece,
  // which stands once for a run of unknown characters. `first` is where the ids of this text begin:
  // an unknown piece before that is of another text.
  void Append(absl::string_view text, size_t first, std::vector<int32_t>* ids) const {
    if (byte_fallback_) {
      for (const char byte : text) ids->push_back(bytes_[static_cast<unsigned char>(byte)]);
    } else if (ids->size() == first || ids->back() != id_) {
      ids->push_back(id_);
    }
  }

  // Makes the ids from `begin` on, which were appended as if the text began there, go on with those
  // before them.
  void JoinRun(size_t begin, size_t first, std::vector<int32_t>* ids) const {
    if (byte_fallback_ || begin <= first || begin == ids->size()) return;
    if ((*ids)[begin - 1] == id_ && (*ids)[begin] == id_) {
      ids->erase(ids->begin() + static_cast<ptrdiff_t>(begin));
    }
  }

  int32_t id() const { return id_; }

 private:
  int32_t id_ = -1;
  bool byte_fallback_;
  std::array<int32_t, 256> bytes_{};
};

}  // namespace convene::worker

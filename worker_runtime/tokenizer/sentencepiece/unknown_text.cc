#include "worker_runtime/tokenizer/sentencepiece/unknown_text.h"

namespace convene::worker {

UnknownText::UnknownText(const ModelFile& model) : byte_fallback_(model.byte_fallback) {
  for (size_t i = 0; i < model.pieces.size(); ++i) {
    const ModelPiece& piece = model.pieces[i];
    const auto id = static_cast<int32_t>(i);
    if (piece.type == PieceType::kUnknown) id_ = id;
    if (piece.type == PieceType::kByte) bytes_[*ByteOfPiece(piece.text)] = id;
  }
}

}  // namespace convene::worker

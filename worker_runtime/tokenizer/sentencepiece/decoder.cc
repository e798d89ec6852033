#include "worker_runtime/tokenizer/sentencepiece/decoder.h"

#include <cstddef>

#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "worker_runtime/tokenizer/unicode.h"

namespace convene::worker {
namespace {

std::string WithSpaces(absl::string_view piece) {
  return absl::StrReplaceAll(piece, {{kSpaceSymbol, " "}});
}

// Moves a run of byte pieces to the text: each byte that is no UTF-8 becomes a U+FFFD.
void FlushBytes(std::string* bytes, std::string* text) {
  AppendAsUtf8(*bytes, Replacement::kEachByte, text);
  bytes->clear();
}

}  // namespace

const ModelPiece* Decoder::PieceOf(int32_t id) const {
  if (id < 0 || static_cast<size_t>(id) >= model_.pieces.size()) return nullptr;
  return &model_.pieces[id];
}

std::string Decoder::Decode(absl::Span<const int32_t> ids, bool show_specials) const {
  const bool drops_first_space =
      model_.normalizer.add_dummy_prefix || model_.normalizer.remove_extra_whitespaces;
  std::string text, bytes;
  // Whether anything of the text has come: then a space is a space. Special tokens do not count.
  bool has_begun = false;
  for (const int32_t id : ids) {
    const ModelPiece* const piece = PieceOf(id);
    if (piece == nullptr) continue;
    if (piece->type == PieceType::kByte) {
      bytes.push_back(static_cast<char>(*ByteOfPiece(piece->text)));
      has_begun = true;
      continue;
    }
    FlushBytes(&bytes, &text);
    if (piece->type == PieceType::kControl) {
      if (show_specials) text += piece->text;
      continue;
    }
    if (piece->type == PieceType::kUnknown) {
      text += model_.unknown_surface;
      has_begun |= !model_.unknown_surface.empty();
      continue;
    }
    absl::string_view rest = piece->text;
    // Of a text with its extra spaces removed all leading spaces are dropped, else the dummy one.
    if (!has_begun && drops_first_space && absl::ConsumePrefix(&rest, kSpaceSymbol)) {
      has_begun = !model_.normalizer.remove_extra_whitespaces;
    }
    text += WithSpaces(rest);
    has_begun |= !rest.empty();
  }
  FlushBytes(&bytes, &text);
  if (denormalizer_ == nullptr) return text;
  std::string denormalized;
  denormalizer_->Normalize(text, &denormalized);
  return denormalized;
}

void Decoder::AppendTokenBytes(int32_t id, std::string* bytes) const {
  const ModelPiece* const piece = PieceOf(id);
  if (piece == nullptr) return;
  switch (piece->type) {
    case PieceType::kControl:
    case PieceType::kUnknown:
      return;
    case PieceType::kByte:
      bytes->push_back(static_cast<char>(*ByteOfPiece(piece->text)));
      return;
    default:
      *bytes += WithSpaces(piece->text);
  }
}

}  // namespace convene::worker

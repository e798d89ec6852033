#include "worker_runtime/tokenizer/sentencepiece/model_file.h"

#include <bit>
#include <cmath>
#include <cstddef>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tools/base/status_macros.h"
#include "tools/base/text.h"
#include "worker_runtime/tokenizer/unicode.h"

namespace convene::worker {
namespace {

// Reads the fields of one protobuf message, one after the other. Copies nothing: the message must
// outlive it and the fields.
// https://protobuf.dev/programming-guides/encoding
class ProtoReader {
 public:
  explicit ProtoReader(absl::string_view message) : rest_(message) {}

  struct Field {
    uint32_t number = 0;
    enum class Kind { kVarint, kFixed64, kBytes, kFixed32 } kind = Kind::kVarint;
    uint64_t value = 0;       // of the kinds with a number
    absl::string_view bytes;  // of kBytes: a string or a message
  };

  // The next field; false at the end, and at what is no field (then ok() is false too). Groups,
  // which proto2 gave up and this format never had, are no fields.
  bool Next(Field* field) {
    if (!ok_ || rest_.empty()) return false;
    *field = Field();
    uint64_t tag = 0;
    ok_ = ReadVarint(&tag) && tag >> 3 != 0 && tag <= 0xFFFFFFFF;
    if (!ok_) return false;
    field->number = static_cast<uint32_t>(tag >> 3);
    switch (tag & 7) {
      case 0:
        field->kind = Field::Kind::kVarint;
        ok_ = ReadVarint(&field->value);
        break;
      case 1:
        field->kind = Field::Kind::kFixed64;
        ok_ = ReadFixed(8, &field->value);
        break;
      case 2: {
        field->kind = Field::Kind::kBytes;
        uint64_t length = 0;
        ok_ = ReadVarint(&length) && length <= rest_.size();
        if (!ok_) break;
        field->bytes = rest_.substr(0, length);
        rest_.remove_prefix(length);
        break;
      }
      case 5:
        field->kind = Field::Kind::kFixed32;
        ok_ = ReadFixed(4, &field->value);
        break;
      default:
        ok_ = false;
    }
    return ok_;
  }

  bool ok() const { return ok_; }

 private:
  bool ReadVarint(uint64_t* value) {
    *value = 0;
    for (int shift = 0; shift < 70 && !rest_.empty(); shift += 7) {
      const auto byte = static_cast<unsigned char>(rest_.front());
      rest_.remove_prefix(1);
      if (shift < 64) *value |= static_cast<uint64_t>(byte & 0x7F) << shift;
      if (byte < 0x80) return true;
    }
    return false;
  }

  bool ReadFixed(size_t bytes, uint64_t* value) {
    if (rest_.size() < bytes) return false;
    *value = 0;
    for (size_t i = 0; i < bytes; ++i) {
      *value |= static_cast<uint64_t>(static_cast<unsigned char>(rest_[i])) << (8 * i);
    }
    rest_.remove_prefix(bytes);
    return true;
  }

  absl::string_view rest_;
  bool ok_ = true;
};

using Kind = ProtoReader::Field::Kind;

// SentencePiece's own limit (model_interface.cc).
constexpr size_t kLongestPiece = 8000;

absl::Status Damaged() {
  return absl::InvalidArgumentError(
      "is not a SentencePiece model, or is damaged (it is no protobuf message with pieces): check "
      "the "
      "path, or fetch the file again");
}

bool Is(const ProtoReader::Field& field, uint32_t number, Kind kind) {
  return field.number == number && field.kind == kind;
}

absl::StatusOr<ModelPiece> ParsePiece(absl::string_view bytes) {
  ModelPiece piece;
  ProtoReader reader(bytes);
  for (ProtoReader::Field field; reader.Next(&field);) {
    if (Is(field, 1, Kind::kBytes)) piece.text = std::string(field.bytes);
    if (Is(field, 2, Kind::kFixed32)) {
      piece.score = std::bit_cast<float>(static_cast<uint32_t>(field.value));
    }
    if (!Is(field, 3, Kind::kVarint)) continue;
    if (field.value < 1 || field.value > 6) {
      return absl::InvalidArgumentError(absl::StrCat("has the unknown type ", field.value));
    }
    piece.type = static_cast<PieceType>(field.value);
  }
  if (!reader.ok()) return Damaged();
  return piece;
}

absl::Status ParseTrainerSpec(absl::string_view bytes, ModelFile* model) {
  ProtoReader reader(bytes);
  for (ProtoReader::Field field; reader.Next(&field);) {
    if (Is(field, 3, Kind::kVarint)) {
      if (field.value != 1 && field.value != 2) {
        return absl::UnimplementedError(absl::StrCat(
            "has model_type ", field.value, field.value == 3 ? " (words)" : "",
            field.value == 4 ? " (characters)" : "", "; Convene reads 1 (unigram) and 2 (BPE)"));
      }
      model->type = static_cast<ModelType>(field.value);
    }
    if (Is(field, 24, Kind::kVarint)) model->treat_whitespace_as_suffix = field.value != 0;
    if (Is(field, 35, Kind::kVarint)) model->byte_fallback = field.value != 0;
    if (Is(field, 44, Kind::kBytes)) model->unknown_surface = std::string(field.bytes);
    // Empty stands for the usual name (model_interface.cc, RETURN_PIECE).
    if (Is(field, 46, Kind::kBytes) && !field.bytes.empty()) {
      model->bos_piece = std::string(field.bytes);
    }
    if (Is(field, 47, Kind::kBytes) && !field.bytes.empty()) {
      model->eos_piece = std::string(field.bytes);
    }
  }
  return reader.ok() ? absl::OkStatus() : Damaged();
}

absl::Status ParseNormalizerSpec(absl::string_view bytes, NormalizerSpec* spec) {
  ProtoReader reader(bytes);
  for (ProtoReader::Field field; reader.Next(&field);) {
    if (Is(field, 2, Kind::kBytes)) spec->precompiled_charsmap = std::string(field.bytes);
    if (Is(field, 3, Kind::kVarint)) spec->add_dummy_prefix = field.value != 0;
    if (Is(field, 4, Kind::kVarint)) spec->remove_extra_whitespaces = field.value != 0;
    if (Is(field, 5, Kind::kVarint)) spec->escape_whitespaces = field.value != 0;
  }
  return reader.ok() ? absl::OkStatus() : Damaged();
}

absl::Status ParseModel(absl::string_view bytes, ModelFile* model) {
  ProtoReader reader(bytes);
  for (ProtoReader::Field field; reader.Next(&field);) {
    if (field.kind != Kind::kBytes) continue;
    if (field.number == 1) {
      absl::StatusOr<ModelPiece> piece = ParsePiece(field.bytes);
      if (!piece.ok()) {
        return Annotate(piece.status(), absl::StrCat("piece ", model->pieces.size()));
      }
      model->pieces.push_back(*std::move(piece));
    } else if (field.number == 2) {
      CONVENE_RETURN_IF_ERROR(ParseTrainerSpec(field.bytes, model));
    } else if (field.number == 3) {
      CONVENE_RETURN_IF_ERROR(ParseNormalizerSpec(field.bytes, &model->normalizer));
    } else if (field.number == 5) {
      if (!model->denormalizer.has_value()) model->denormalizer.emplace();
      CONVENE_RETURN_IF_ERROR(ParseNormalizerSpec(field.bytes, &*model->denormalizer));
    }
  }
  return reader.ok() ? absl::OkStatus() : Damaged();
}

absl::Status CheckPiece(const ModelPiece& piece, bool byte_fallback) {
  if (piece.text.empty()) return absl::InvalidArgumentError("is empty");
  if (piece.text.size() >= kLongestPiece) {
    return absl::InvalidArgumentError(absl::StrCat("has ", piece.text.size(), " bytes; less than ",
                                                   kLongestPiece, " are allowed"));
  }
  if (piece.text.find('\0') != std::string::npos || !IsUtf8(piece.text)) {
    return absl::InvalidArgumentError("has a NUL or is not UTF-8");
  }
  if (!std::isfinite(piece.score))
    return absl::InvalidArgumentError("has a score that is no number");
  if (piece.type != PieceType::kByte) return absl::OkStatus();
  if (!byte_fallback) {
    return absl::InvalidArgumentError("is a byte, though the model does not fall back to bytes");
  }
  if (!ByteOfPiece(piece.text).has_value()) {
    return absl::InvalidArgumentError("is of type BYTE, but does not look like <0x0A>");
  }
  return absl::OkStatus();
}

absl::Status CheckPieces(const ModelFile& model) {
  if (model.pieces.empty()) return Damaged();
  absl::flat_hash_set<absl::string_view> texts;
  texts.reserve(model.pieces.size());
  int unknown = 0, bytes = 0;
  for (size_t i = 0; i < model.pieces.size(); ++i) {
    const ModelPiece& piece = model.pieces[i];
    absl::Status status = CheckPiece(piece, model.byte_fallback);
    if (status.ok() && !texts.insert(piece.text).second) {
      status = absl::InvalidArgumentError("stands in the file twice");
    }
    if (!status.ok()) {
      return Annotate(status, absl::StrCat("piece ", i, " (\"", Utf8(piece.text, 40), "\")"));
    }
    unknown += piece.type == PieceType::kUnknown;
    bytes += piece.type == PieceType::kByte;
  }
  if (unknown != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("has ", unknown, " pieces of type UNKNOWN instead of one"));
  }
  if (model.byte_fallback && bytes != 256) {
    return absl::InvalidArgumentError(
        absl::StrCat("falls back to bytes, but has pieces for ", bytes, " of the 256"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ModelFile> ParseModelFile(absl::string_view bytes) {
  ModelFile model;
  CONVENE_RETURN_IF_ERROR(ParseModel(bytes, &model));
  CONVENE_RETURN_IF_ERROR(CheckPieces(model));
  return model;
}

std::optional<uint8_t> ByteOfPiece(absl::string_view text) {
  static constexpr absl::string_view kDigits = "0123456789ABCDEF";
  if (text.size() != 6 || text.substr(0, 3) != "<0x" || text[5] != '>') return std::nullopt;
  const size_t high = kDigits.find(text[3]), low = kDigits.find(text[4]);
  if (high == absl::string_view::npos || low == absl::string_view::npos) return std::nullopt;
  return static_cast<uint8_t>(16 * high + low);
}

}  // namespace convene::worker

// A SentencePiece .model file: a protobuf message ModelProto (sentencepiece_model.proto).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace convene::worker {

// U+2581, which stands for a space within pieces.
inline constexpr char kSpaceSymbol[] = "\xE2\x96\x81";

enum class PieceType {
  kNormal = 1,
  kUnknown = 2,      // stands for characters that the model does not have; there is one
  kControl = 3,      // "</s>"; never made from text
  kUserDefined = 4,  // always whole where the text has it
  kUnused = 5,       // a normal piece that was taken out of the vocabulary
  kByte = 6,         // "<0x0A>"
};

struct ModelPiece {
  std::string text;
  float score = 0;  // finite
  PieceType type = PieceType::kNormal;
};

enum class ModelType { kUnigram = 1, kBpe = 2 };

struct NormalizerSpec {
  std::string precompiled_charsmap;
  bool add_dummy_prefix = true;
  bool remove_extra_whitespaces = true;
  bool escape_whitespaces = true;
};

// The parts that decide about ids and decoding; the defaults are the format's.
struct ModelFile {
  std::vector<ModelPiece> pieces;  // by id; different non-empty UTF-8 texts without NUL
  ModelType type = ModelType::kUnigram;
  bool treat_whitespace_as_suffix = false;
  bool byte_fallback = false;  // then each of the 256 bytes is a piece
  std::string bos_piece = "<s>";
  std::string eos_piece = "</s>";
  std::string unknown_surface = " \xE2\x81\x87 ";
  NormalizerSpec normalizer;
  std::optional<NormalizerSpec> denormalizer;
};

// PURE. InvalidArgument: not a ModelProto, damaged, or pieces that SentencePiece itself refuses
// (which, and why). Unimplemented: a model of words or characters.
absl::StatusOr<ModelFile> ParseModelFile(absl::string_view bytes);

// The byte of a piece such as "<0x0A>".
std::optional<uint8_t> ByteOfPiece(absl::string_view text);

}  // namespace convene::worker

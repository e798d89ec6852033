#include "worker_runtime/gguf/sentencepiece_vocabulary.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/tokenizer/unicode.h"

namespace convene::worker {
namespace {

// A protobuf message, field after field. https://protobuf.dev/programming-guides/encoding
class Message {
 public:
  Message& Number(uint32_t field, uint64_t value) {
    Varint(field << 3);
    Varint(value);
    return *this;
  }
  Message& Bytes(uint32_t field, absl::string_view bytes) {
    Varint(field << 3 | 2);
    Varint(bytes.size());
    absl::StrAppend(&text_, bytes);
    return *this;
  }
  Message& Float(uint32_t field, float value) {
    Varint(field << 3 | 5);
    const auto bits = std::bit_cast<uint32_t>(value);
    for (int shift = 0; shift < 32; shift += 8) text_ += static_cast<char>(bits >> shift);
    return *this;
  }
  const std::string& text() const { return text_; }

 private:
  void Varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) text_ += static_cast<char>(value | 0x80);
    text_ += static_cast<char>(value);
  }

  std::string text_;
};

// Fields of ModelProto, and of the messages in it.
constexpr uint32_t kPiece = 1, kTrainer = 2, kNormalizer = 3;
constexpr uint32_t kText = 1, kScore = 2, kType = 3;
constexpr uint32_t kModelType = 3, kByteFallback = 35, kBeginPiece = 46, kEndPiece = 47;
constexpr uint32_t kDummyPrefix = 3, kRemoveExtraSpaces = 4;
constexpr uint64_t kBpe = 2;
constexpr int64_t kNormalType = 1, kUnknownType = 2, kByteType = 6;

constexpr char kAddsSpace[] = "tokenizer.ggml.add_space_prefix";
constexpr char kUnknownId[] = "tokenizer.ggml.unknown_token_id";

absl::StatusOr<size_t> UnknownPiece(const GgufFile& file,
                                    const std::vector<absl::string_view>& tokens,
                                    const std::vector<int64_t>& types) {
  const auto known = std::find(types.begin(), types.end(), kUnknownType);
  if (known != types.end()) return static_cast<size_t>(known - types.begin());
  if (file.Has(kUnknownId)) {
    CONVENE_ASSIGN_OR_RETURN(const int id, file.Count(kUnknownId));
    return static_cast<size_t>(id);  // beyond the tokens it is refused where the config names it
  }
  const auto named = std::find(tokens.begin(), tokens.end(), "<unk>");
  return named == tokens.end() ? 0 : static_cast<size_t>(named - tokens.begin());
}

// Whether the pieces that are made by merges, which are longer than a character, tell their order.
absl::Status CheckScores(const std::vector<absl::string_view>& tokens,
                         const std::vector<double>& scores, const std::vector<int64_t>& types) {
  std::optional<double> first;
  int merged = 0;
  for (size_t id = 0; id < tokens.size(); ++id) {
    if (types[id] != kNormalType || CountCharacters(tokens[id]) < 2) continue;
    if (scores[id] != first.value_or(scores[id])) return absl::OkStatus();
    first = scores[id];
    ++merged;
  }
  if (merged < 2) return absl::OkStatus();
  return absl::UnimplementedError(absl::StrCat(
      "a GGUF vocabulary whose tokens all have one score (tokenizer.ggml.scores), so that it does "
      "not say which are merged first",
      kTokenizerInstead));
}

}  // namespace

absl::StatusOr<std::string> SentencePieceModelOf(const GgufFile& file) {
  CONVENE_ASSIGN_OR_RETURN(const auto* const tokens, file.Texts("tokenizer.ggml.tokens"));
  CONVENE_ASSIGN_OR_RETURN(const auto* const scores, file.Reals("tokenizer.ggml.scores"));
  CONVENE_ASSIGN_OR_RETURN(const auto* const types, file.Numbers("tokenizer.ggml.token_type"));
  if (scores->size() != tokens->size() || types->size() != tokens->size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the GGUF file has ", tokens->size(), " tokens, ", scores->size(),
                     " scores (tokenizer.ggml.scores) and ", types->size(),
                     " types (tokenizer.ggml.token_type)"));
  }
  CONVENE_RETURN_IF_ERROR(CheckScores(*tokens, *scores, *types));
  CONVENE_ASSIGN_OR_RETURN(const size_t unknown, UnknownPiece(file, *tokens, *types));
  Message model;
  for (size_t id = 0; id < tokens->size(); ++id) {
    // The types are numbered as SentencePiece's.
    const int64_t type = id == unknown ? kUnknownType : (*types)[id];
    model.Bytes(kPiece, Message()
                            .Bytes(kText, (*tokens)[id])
                            .Float(kScore, static_cast<float>((*scores)[id]))
                            .Number(kType, static_cast<uint64_t>(type))
                            .text());
  }
  Message trainer;
  const bool has_bytes = std::find(types->begin(), types->end(), kByteType) != types->end();
  trainer.Number(kModelType, kBpe).Number(kByteFallback, has_bytes ? 1 : 0);
  const auto name = [&](const char* key, uint32_t field) -> absl::Status {
    if (!file.Has(key)) return absl::OkStatus();
    CONVENE_ASSIGN_OR_RETURN(const int id, file.Count(key));
    if (static_cast<size_t>(id) < tokens->size()) trainer.Bytes(field, (*tokens)[id]);
    return absl::OkStatus();  // an id beyond the tokens is refused where the config names it
  };
  CONVENE_RETURN_IF_ERROR(name("tokenizer.ggml.bos_token_id", kBeginPiece));
  CONVENE_RETURN_IF_ERROR(name("tokenizer.ggml.eos_token_id", kEndPiece));
  bool adds_space = true;
  if (file.Has(kAddsSpace)) {
    CONVENE_ASSIGN_OR_RETURN(adds_space, file.Bool(kAddsSpace));
  }
  model.Bytes(kTrainer, trainer.text());
  model.Bytes(
      kNormalizer,
      Message().Number(kDummyPrefix, adds_space ? 1 : 0).Number(kRemoveExtraSpaces, 0).text());
  return model.text();
}

}  // namespace convene::worker

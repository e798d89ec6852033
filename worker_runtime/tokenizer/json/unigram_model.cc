#include "worker_runtime/tokenizer/json/token_model.h"

#include <cstdint>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/tokenizer/unicode.h"
#include "worker_runtime/tokenizer/unigram.h"
#include "worker_runtime/tokenizer/word_ids.h"

namespace convene::worker {
namespace {

class UnigramModel : public TokenModel {
 public:
  UnigramModel(const std::vector<UnigramLattice::Piece>& pieces, Vocabulary vocabulary,
               absl::flat_hash_set<int32_t> hidden, int32_t unknown, bool has_byte_fallback)
      : vocabulary_(std::move(vocabulary)),
        hidden_(std::move(hidden)),
        lattice_(pieces, unknown, UnigramLattice::Rules::kHuggingFace),
        unknown_(unknown),
        has_byte_fallback_(has_byte_fallback),
        fallback_(vocabulary_) {}

  std::string type() const override { return "Unigram"; }
  const Vocabulary& vocabulary() const override { return vocabulary_; }
  std::unique_ptr<PieceEncoder> NewEncoder() const override;

 private:
  friend class UnigramEncoder;

  const Vocabulary vocabulary_;
  const absl::flat_hash_set<int32_t> hidden_;  // special tokens
  const UnigramLattice lattice_;
  const int32_t unknown_;
  const bool has_byte_fallback_;
  const ByteFallback fallback_;
};

class UnigramEncoder : public PieceEncoder {
 public:
  explicit UnigramEncoder(const UnigramModel* model) : model_(*model) {}

  void Encode(absl::string_view piece, std::vector<int32_t>* ids) override {
    cache_.Append(piece, ids, [&] { EncodeNew(piece, ids); });
  }

 private:
  void EncodeNew(absl::string_view piece, std::vector<int32_t>* ids) {
    segments_.clear();
    model_.lattice_.Best(piece, &segments_, &scratch_);
    for (size_t i = 0; i < segments_.size();) {
      if (segments_[i].id != model_.unknown_) {
        ids->push_back(segments_[i++].id);
        continue;
      }
      // Unknown characters in a row are one text.
      const size_t begin = segments_[i].begin;
      size_t end = begin;
      while (i < segments_.size() && segments_[i].id == model_.unknown_) end = segments_[i++].end;
      AddUnknown(piece.substr(begin, end - begin), ids);
    }
  }

  void AddUnknown(absl::string_view text, std::vector<int32_t>* ids) const {
    const std::optional<int32_t> known = model_.vocabulary_.Find(text);
    if (known.has_value() && !model_.hidden_.contains(*known)) {
      ids->push_back(*known);
      return;
    }
    if (model_.has_byte_fallback_ && model_.fallback_.Append(text, ids)) return;
    ids->push_back(model_.unknown_);
  }

  const UnigramModel& model_;
  WordIds</*kWords=*/4, /*kIds=*/8, /*kBits=*/15> cache_;
  std::vector<UnigramLattice::Segment> segments_;
  UnigramLattice::Scratch scratch_;
};

}  // namespace

std::unique_ptr<PieceEncoder> UnigramModel::NewEncoder() const {
  return std::make_unique<UnigramEncoder>(this);
}

absl::StatusOr<std::unique_ptr<TokenModel>> ReadUnigramModel(const JsonNode& node,
                                                             const SpecialContents& specials) {
  CONVENE_ASSIGN_OR_RETURN(const JsonNode list, node.Get("vocab"));
  CONVENE_ASSIGN_OR_RETURN(const std::vector<JsonNode> elements, list.Elements());
  if (elements.empty()) return list.Error("is empty");
  std::vector<UnigramLattice::Piece> pieces;
  pieces.reserve(elements.size());
  Vocabulary vocabulary;
  absl::flat_hash_set<int32_t> hidden;
  for (const JsonNode& element : elements) {
    const rapidjson::Value& value = element.value();
    if (!value.IsArray() || value.Size() != 2 || !value[0].IsString() || !value[1].IsNumber()) {
      return element.Error("should be [token, score]");
    }
    UnigramLattice::Piece piece;
    piece.text = std::string(TextOf(value[0]));
    piece.score = value[1].GetDouble();
    const bool is_special = specials.contains(piece.text) && !IsOneCharacter(piece.text);
    piece.is_used = !piece.text.empty() && !is_special;
    if (is_special) hidden.insert(static_cast<int32_t>(pieces.size()));
    vocabulary.Add(piece.text, static_cast<int32_t>(pieces.size()));
    pieces.push_back(std::move(piece));
  }
  const auto unknown_node = node.Find("unk_id");
  if (!unknown_node.has_value()) {
    return LacksFeature(node.place(), "\"Unigram\" without \"unk_id\"");
  }
  CONVENE_ASSIGN_OR_RETURN(const int64_t unknown,
                           unknown_node->Number(static_cast<int64_t>(pieces.size()) - 1));
  CONVENE_ASSIGN_OR_RETURN(const bool has_byte_fallback, node.GetBool("byte_fallback", false));
  return std::make_unique<UnigramModel>(pieces, std::move(vocabulary), std::move(hidden),
                                        static_cast<int32_t>(unknown), has_byte_fallback);
}

}  // namespace convene::worker

#include "worker_runtime/tokenizer/json/token_model.h"

#include <cstdint>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/tokenizer/byte_bpe.h"
#include "worker_runtime/tokenizer/character_table.h"
#include "worker_runtime/tokenizer/json/byte_level.h"
#include "worker_runtime/tokenizer/pair_merges.h"
#include "worker_runtime/tokenizer/unicode.h"
#include "worker_runtime/tokenizer/word_ids.h"

namespace convene::worker {
namespace {

// Of the filter of neighbours: 64 KiB.
constexpr int kFilterBits = 19;

struct BpeOptions {
  std::optional<int32_t> unknown;
  bool fuses_unknown = false;
  bool has_byte_fallback = false;
  bool ignores_merges = false;
  absl::flat_hash_set<int32_t> hidden;  // special tokens, never a whole piece
  std::string subword_prefix;           // of each character but a piece's first
  std::string word_suffix;              // of a piece's last character

  bool has_affixes() const { return !subword_prefix.empty() || !word_suffix.empty(); }
};

class BpeModel : public TokenModel {
 public:
  BpeModel(Vocabulary vocabulary, const std::vector<PairMerges::Merge>& merges, BpeOptions options)
      : vocabulary_(std::move(vocabulary)),
        merges_(merges),
        options_(std::move(options)),
        fallback_(vocabulary_) {
    for (int32_t id = 0; id < vocabulary_.id_count(); ++id) AddSymbol(vocabulary_.Token(id));
    for (const PairMerges::Merge& merge : merges) AllowNeighbours(merge);
  }

  std::string type() const override { return "BPE"; }
  const Vocabulary& vocabulary() const override { return vocabulary_; }
  std::unique_ptr<PieceEncoder> NewEncoder() const override;

  bool TakeBytes() override {
    if (options_.has_affixes()) return false;
    const bool drops_unknown = !options_.unknown.has_value() && !options_.has_byte_fallback;
    for (int byte = 0; byte < 256 && !drops_unknown; ++byte) {
      const char c = static_cast<char>(byte);
      std::string spelled;
      AppendSpelled(absl::string_view(&c, 1), &spelled);
      if (!vocabulary_.Find(spelled).has_value()) return false;
    }
    std::vector<std::string> tokens(static_cast<size_t>(vocabulary_.id_count()));
    for (int32_t id = 0; id < vocabulary_.id_count(); ++id) {
      if (options_.hidden.contains(id)) continue;
      tokens[id] = Unspelled(vocabulary_.Token(id)).value_or("");
    }
    bytes_ = std::make_unique<ByteBpe>(
        std::move(tokens), std::move(merges_),
        options_.ignores_merges ? ByteBpe::WholePieces::kFirst : ByteBpe::WholePieces::kNever);
    return true;
  }

 private:
  friend class CharacterEncoder;

  void AddSymbol(absl::string_view token) {
    if (token.empty()) return;
    const Character character = CharacterAt(token, 0);
    if (character.bytes != token.size()) return;
    characters_.Set(character.code, *vocabulary_.Find(token));
  }

  void AllowNeighbours(const PairMerges::Merge& merge) {
    const absl::string_view left = vocabulary_.Token(merge.left);
    const absl::string_view right = vocabulary_.Token(merge.right);
    if (left.empty() || right.empty()) return;
    neighbours_.Add(HashOfPair(CharacterAt(left, PreviousCharacter(left, left.size())).code,
                               CharacterAt(right, 0).code));
  }

  const Vocabulary vocabulary_;
  PairMerges merges_;
  const BpeOptions options_;
  const ByteFallback fallback_;
  CharacterTable characters_;  // the tokens of one character
  // The characters that may be neighbours inside of a token. Between two that may not, no merge
  // ever reaches across, so that a text can be cut there without a change of its ids.
  PairFilter neighbours_{kFilterBits};

  std::unique_ptr<ByteBpe> bytes_;  // after TakeBytes; has the merges then
};

// Pieces are bytes.
class ByteEncoder : public PieceEncoder {
 public:
  explicit ByteEncoder(const ByteBpe* model) : model_(*model) {}

  void Encode(absl::string_view piece, std::vector<int32_t>* ids) override {
    model_.Encode(piece, &scratch_, ids);
  }

 private:
  const ByteBpe& model_;
  ByteBpe::Scratch scratch_;
};

// Pieces are characters.
class CharacterEncoder : public PieceEncoder {
 public:
  explicit CharacterEncoder(const BpeModel* model) : model_(*model), options_(model->options_) {}

  void Encode(absl::string_view piece, std::vector<int32_t>* ids) override {
    if (options_.ignores_merges) {
      const std::optional<int32_t> word = model_.vocabulary_.Find(piece);
      if (word.has_value() && !options_.hidden.contains(*word)) {
        ids->push_back(*word);
        return;
      }
    }
    waits_for_unknown_ = false;
    size_t run = 0;             // where the symbols begin
    char32_t previous = kNone;  // the last character, if the last symbol is its
    for (size_t at = 0; at < piece.size();) {
      const Character character = CharacterAt(piece, at);
      const size_t end = at + character.bytes;
      const int32_t symbol = SymbolAt(piece, at, end, character.code);
      if (symbol < 0) {
        AddUnknown(piece, at, end);
      } else {
        FlushUnknown();
        if (previous != kNone && CanCut(previous, character.code)) {
          EndRun(piece.substr(run, at - run), ids);
          run = at;
        }
        symbols_.push_back(symbol);
      }
      previous = symbol >= 0 ? character.code : kNone;
      at = end;
    }
    FlushUnknown();
    EndRun(piece.substr(run), ids);
  }

 private:
  static constexpr char32_t kNone = 0xFFFFFFFF;

  bool CanCut(char32_t left, char32_t right) const {
    return !options_.has_affixes() && !model_.neighbours_.MayHave(HashOfPair(left, right));
  }

  // The character with its prefix and suffix.
  absl::string_view Affixed(absl::string_view piece, size_t at, size_t end) {
    affixed_.clear();
    if (at > 0) affixed_ = options_.subword_prefix;
    affixed_.append(piece.data() + at, end - at);
    if (end == piece.size()) affixed_ += options_.word_suffix;
    return affixed_;
  }

  int32_t SymbolAt(absl::string_view piece, size_t at, size_t end, char32_t code) {
    if (!options_.has_affixes()) return model_.characters_.Find(code);
    return model_.vocabulary_.Find(Affixed(piece, at, end)).value_or(-1);
  }

  void AddUnknown(absl::string_view piece, size_t at, size_t end) {
    // An unknown token that waits goes behind these bytes: the original does so.
    if (options_.has_byte_fallback && model_.fallback_.Append(Affixed(piece, at, end), &symbols_)) {
      return;
    }
    if (!options_.unknown.has_value()) return;
    if (!options_.fuses_unknown) FlushUnknown();
    waits_for_unknown_ = true;
  }

  void FlushUnknown() {
    if (waits_for_unknown_) symbols_.push_back(*options_.unknown);
    waits_for_unknown_ = false;
  }

  // Merges the symbols, which are those of `text`.
  void EndRun(absl::string_view text, std::vector<int32_t>* ids) {
    if (symbols_.size() == 1) {
      ids->push_back(symbols_[0]);
    } else if (!symbols_.empty()) {
      cache_.Append(text, ids, [&] {
        model_.merges_.Apply(&symbols_, &scratch_);
        ids->insert(ids->end(), symbols_.begin(), symbols_.end());
      });
    }
    symbols_.clear();
  }

  const BpeModel& model_;
  const BpeOptions& options_;
  WordIds</*kWords=*/4, /*kIds=*/8, /*kBits=*/15> cache_;  // of runs
  std::vector<int32_t> symbols_;
  bool waits_for_unknown_ = false;
  std::string affixed_;
  PairMerges::Scratch scratch_;
};

// One merge is "a b" or ["a", "b"].
std::optional<std::pair<absl::string_view, absl::string_view>> ReadPair(
    const rapidjson::Value& value) {
  if (value.IsArray() && value.Size() == 2 && value[0].IsString() && value[1].IsString()) {
    return std::make_pair(TextOf(value[0]), TextOf(value[1]));
  }
  if (!value.IsString()) return std::nullopt;
  const absl::string_view both = TextOf(value);
  const size_t space = both.find(' ');
  if (space == absl::string_view::npos || both.find(' ', space + 1) != absl::string_view::npos) {
    return std::nullopt;
  }
  return std::make_pair(both.substr(0, space), both.substr(space + 1));
}

absl::StatusOr<std::vector<PairMerges::Merge>> ReadMerges(const JsonNode& node,
                                                          const Vocabulary& vocabulary,
                                                          size_t prefix_bytes) {
  if (!node.value().IsArray()) return node.Error("should be an array");
  std::vector<PairMerges::Merge> merges;
  merges.reserve(node.value().Size());
  std::string merged;
  for (const rapidjson::Value& value : node.value().GetArray()) {
    // The first line of a merges.txt.
    if (value.IsString() && absl::StartsWith(TextOf(value), "#version")) continue;
    const auto failed = [&](absl::string_view complaint) {
      return JsonNode(&value, absl::StrCat(node.place(), "[", merges.size(), "]")).Error(complaint);
    };
    const auto pair = ReadPair(value);
    if (!pair.has_value()) return failed("should be two tokens: \"a b\" or [\"a\", \"b\"]");
    const auto [left, right] = *pair;
    if (right.size() < prefix_bytes) return failed("has a second token without its prefix");
    merged.assign(left.data(), left.size());
    merged.append(right.data() + prefix_bytes, right.size() - prefix_bytes);
    const std::optional<int32_t> ids[] = {vocabulary.Find(left), vocabulary.Find(right),
                                          vocabulary.Find(merged)};
    for (const std::optional<int32_t>& id : ids) {
      if (!id.has_value())
        return failed("has a token, or makes one, that is not in the vocabulary");
    }
    merges.push_back({*ids[0], *ids[1], *ids[2], static_cast<int32_t>(merges.size())});
  }
  return merges;
}

absl::StatusOr<std::string> OptionalString(const JsonNode& node, const char* key) {
  const auto member = node.Find(key);
  if (!member.has_value()) return std::string();
  return member->String();
}

}  // namespace

std::unique_ptr<PieceEncoder> BpeModel::NewEncoder() const {
  if (bytes_ != nullptr) return std::make_unique<ByteEncoder>(bytes_.get());
  return std::make_unique<CharacterEncoder>(this);
}

absl::StatusOr<std::unique_ptr<TokenModel>> ReadBpeModel(const JsonNode& node,
                                                         const SpecialContents& specials) {
  const auto dropout = node.Find("dropout");
  if (dropout.has_value() && !(dropout->value().IsNumber() && dropout->value().GetDouble() == 0)) {
    return LacksFeature(dropout->place(), "\"dropout\"");
  }
  BpeOptions options;
  CONVENE_ASSIGN_OR_RETURN(options.fuses_unknown, node.GetBool("fuse_unk", false));
  CONVENE_ASSIGN_OR_RETURN(options.has_byte_fallback, node.GetBool("byte_fallback", false));
  CONVENE_ASSIGN_OR_RETURN(options.ignores_merges, node.GetBool("ignore_merges", false));
  CONVENE_ASSIGN_OR_RETURN(options.subword_prefix,
                           OptionalString(node, "continuing_subword_prefix"));
  CONVENE_ASSIGN_OR_RETURN(options.word_suffix, OptionalString(node, "end_of_word_suffix"));
  CONVENE_ASSIGN_OR_RETURN(const JsonNode vocabulary_node, node.Get("vocab"));
  CONVENE_ASSIGN_OR_RETURN(Vocabulary vocabulary, Vocabulary::Read(vocabulary_node));
  CONVENE_ASSIGN_OR_RETURN(const std::string unknown, OptionalString(node, "unk_token"));
  if (!unknown.empty()) options.unknown = vocabulary.Find(unknown);
  for (const std::string& special : specials) {
    const std::optional<int32_t> id = vocabulary.Find(special);
    if (id.has_value() && !IsOneCharacter(special)) options.hidden.insert(*id);
  }
  CONVENE_ASSIGN_OR_RETURN(const JsonNode merges_node, node.Get("merges"));
  CONVENE_ASSIGN_OR_RETURN(const std::vector<PairMerges::Merge> merges,
                           ReadMerges(merges_node, vocabulary, options.subword_prefix.size()));
  return std::make_unique<BpeModel>(std::move(vocabulary), merges, std::move(options));
}

}  // namespace convene::worker

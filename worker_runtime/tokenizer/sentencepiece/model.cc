#include "worker_runtime/tokenizer/sentencepiece/model.h"

#include <xxhash.h>

#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tools/base/status_macros.h"
#include "tools/base/text.h"
#include "worker_runtime/tokenizer/byte_trie.h"
#include "worker_runtime/tokenizer/sentencepiece/bpe.h"
#include "worker_runtime/tokenizer/sentencepiece/charsmap.h"
#include "worker_runtime/tokenizer/sentencepiece/decoder.h"
#include "worker_runtime/tokenizer/sentencepiece/model_file.h"
#include "worker_runtime/tokenizer/sentencepiece/normalizer.h"
#include "worker_runtime/tokenizer/sentencepiece/unknown_text.h"
#include "worker_runtime/tokenizer/tokenizer_config.h"
#include "worker_runtime/tokenizer/unigram.h"

namespace convene::worker {
namespace {

bool IsSpecial(const ModelPiece& piece) {
  return piece.type == PieceType::kControl || piece.type == PieceType::kUnknown;
}

template <typename Predicate>
ByteTrie TrieOf(const ModelFile& model, Predicate is_member) {
  std::vector<ByteTrie::Entry> entries;
  for (size_t i = 0; i < model.pieces.size(); ++i) {
    if (!is_member(model.pieces[i])) continue;
    entries.push_back({model.pieces[i].text, static_cast<int32_t>(i)});
  }
  return ByteTrie(std::move(entries));
}

class SentencePieceTokenizer;

class SentencePieceEncoder : public Encoder {
 public:
  SentencePieceEncoder(const SentencePieceTokenizer& tokenizer, SpecialText special_text)
      : tokenizer_(tokenizer), special_text_(special_text) {}

  void Encode(absl::string_view text, std::vector<int32_t>* ids) override;

 private:
  void EncodeOne(absl::string_view text, std::vector<int32_t>* ids);

  const SentencePieceTokenizer& tokenizer_;
  const SpecialText special_text_;
  std::string normalized_;
  BpeModel::Scratch bpe_scratch_;
  UnigramLattice::Scratch unigram_scratch_;
  std::vector<UnigramLattice::Segment> segments_;
};

class SentencePieceTokenizer : public Tokenizer {
 public:
  SentencePieceTokenizer(ModelFile model, uint64_t fingerprint)
      : model_(std::move(model)),
        user_symbols_(TrieOf(
            model_, [](const ModelPiece& piece) { return piece.type == PieceType::kUserDefined; })),
        specials_(TrieOf(model_, IsSpecial)),
        unknown_(model_) {
    kind_ = model_.type == ModelType::kBpe ? "SentencePiece (BPE)" : "SentencePiece (unigram)";
    fingerprint_ = fingerprint;
    vocabulary_size_ = static_cast<int>(model_.pieces.size());
    for (size_t i = 0; i < model_.pieces.size(); ++i) {
      const ModelPiece& piece = model_.pieces[i];
      if (piece.type != PieceType::kControl) continue;
      if (piece.text == model_.bos_piece) prefix_.push_back(static_cast<int32_t>(i));
      if (piece.text == model_.eos_piece) end_of_document_ = static_cast<int32_t>(i);
    }
  }

  // Called once, before Build.
  absl::Status Configure(const VocabularyConfig& config) {
    for (const AddedToken& token : config.added_tokens) {
      if (token.id < vocabulary_size()) continue;
      return absl::UnimplementedError(
          absl::StrCat("the tokenizer_config.json beside it adds the token \"",
                       Utf8(token.content, 80), "\" with the id ", token.id,
                       ", which the model does not have: use the model's "
                       "tokenizer.json"));
    }
    const bool adds_end = config.adds_end_of_document.value_or(false);
    // The file's fingerprint stays that of the file with what is usual around a text.
    if (!config.adds_begin_of_document.value_or(true) && !prefix_.empty()) {
      prefix_.clear();
      fingerprint_ += 1;
    }
    if (adds_end && end_of_document_.has_value()) {
      suffix_ = {*end_of_document_};
      fingerprint_ += 2;
    }
    if ((config.adds_begin_of_document.value_or(false) && prefix_.empty()) ||
        (adds_end && suffix_.empty())) {
      return absl::InvalidArgumentError(
          "the tokenizer_config.json beside it has add_bos_token or add_eos_token, but the model "
          "has no control piece for it");
    }
    return absl::OkStatus();
  }

  // Called once, before any other method.
  absl::Status Build() {
    CONVENE_ASSIGN_OR_RETURN(Charsmap map, Charsmap::Read(model_.normalizer.precompiled_charsmap));
    normalizer_ = std::make_unique<Normalizer>(model_.normalizer, std::move(map),
                                               model_.treat_whitespace_as_suffix, &user_symbols_);
    std::unique_ptr<Normalizer> denormalizer;
    if (model_.denormalizer.has_value() && !model_.denormalizer->precompiled_charsmap.empty()) {
      CONVENE_ASSIGN_OR_RETURN(Charsmap back,
                               Charsmap::Read(model_.denormalizer->precompiled_charsmap));
      denormalizer =
          std::make_unique<Normalizer>(*model_.denormalizer, std::move(back), false, nullptr);
    }
    decoder_ = std::make_unique<Decoder>(model_, std::move(denormalizer));
    if (model_.type == ModelType::kBpe) {
      CONVENE_ASSIGN_OR_RETURN(bpe_, BpeModel::Make(model_, &user_symbols_));
      return absl::OkStatus();
    }
    std::vector<UnigramLattice::Piece> pieces;
    pieces.reserve(model_.pieces.size());
    for (const ModelPiece& piece : model_.pieces) {
      const bool is_user_defined = piece.type == PieceType::kUserDefined;
      pieces.push_back({piece.text, piece.score, is_user_defined,
                        is_user_defined || piece.type == PieceType::kNormal});
    }
    unigram_ = std::make_unique<UnigramLattice>(pieces, unknown_.id(),
                                                UnigramLattice::Rules::kSentencePiece);
    return absl::OkStatus();
  }

  std::unique_ptr<Encoder> NewEncoder(SpecialText special_text) const override {
    return std::make_unique<SentencePieceEncoder>(*this, special_text);
  }

  std::optional<int32_t> SpecialId(absl::string_view text) const override {
    const ByteTrie::Match match = specials_.Longest(text);
    if (match.length == 0 || match.length != text.size()) return std::nullopt;
    return match.value;
  }
  std::string SpecialTextOf(int32_t id) const override {
    if (id < 0 || id >= vocabulary_size() || !IsSpecial(model_.pieces[id])) return "";
    return model_.pieces[id].text;
  }
  std::string AddedTextOf(int32_t id) const override {
    const bool is_user_defined =
        id >= 0 && id < vocabulary_size() && model_.pieces[id].type == PieceType::kUserDefined;
    return is_user_defined ? model_.pieces[id].text : SpecialTextOf(id);
  }

  void AppendTokenBytes(int32_t id, std::string* bytes) const override {
    decoder_->AppendTokenBytes(id, bytes);
  }
  std::string Decode(absl::Span<const int32_t> ids, bool show_specials) const override {
    return decoder_->Decode(ids, show_specials);
  }

 private:
  friend class SentencePieceEncoder;

  const ModelFile model_;
  const ByteTrie user_symbols_;
  const ByteTrie specials_;
  const UnknownText unknown_;
  std::unique_ptr<Normalizer> normalizer_;
  std::unique_ptr<Decoder> decoder_;
  std::unique_ptr<BpeModel> bpe_;  // or unigram_
  std::unique_ptr<UnigramLattice> unigram_;
};

void SentencePieceEncoder::Encode(absl::string_view text, std::vector<int32_t>* ids) {
  if (special_text_ == SpecialText::kAsTokens) {
    for (;;) {
      const ByteTrie::Found found = tokenizer_.specials_.FindFirst(text, 0);
      if (found.match.length == 0) break;
      EncodeOne(text.substr(0, found.begin), ids);
      ids->push_back(found.match.value);
      text.remove_prefix(found.begin + found.match.length);
    }
  }
  EncodeOne(text, ids);
}

void SentencePieceEncoder::EncodeOne(absl::string_view text, std::vector<int32_t>* ids) {
  if (text.empty()) return;
  tokenizer_.normalizer_->Normalize(text, &normalized_);
  if (tokenizer_.bpe_ != nullptr) return tokenizer_.bpe_->Append(normalized_, ids, &bpe_scratch_);
  const size_t first = ids->size();
  segments_.clear();
  tokenizer_.unigram_->Best(normalized_, &segments_, &unigram_scratch_);
  for (const UnigramLattice::Segment& segment : segments_) {
    if (segment.id != tokenizer_.unknown_.id()) {
      ids->push_back(segment.id);
      continue;
    }
    const absl::string_view unknown(normalized_.data() + segment.begin,
                                    segment.end - segment.begin);
    tokenizer_.unknown_.Append(unknown, first, ids);
  }
}

// The whole file: it holds all that decides about ids.
uint64_t FingerprintOf(absl::string_view proto_bytes) {
  constexpr absl::string_view kSeed = "SentencePiece";
  return XXH3_64bits_withSeed(proto_bytes.data(), proto_bytes.size(),
                              XXH3_64bits(kSeed.data(), kSeed.size()));
}

}  // namespace

bool LooksLikeSentencePiece(absl::string_view bytes) {
  // ModelProto.pieces is field 1; its length is one or two bytes for any usual piece; then comes
  // SentencePiece.piece, field 1 too. Both tags are 0x0A, a newline.
  if (bytes.size() < 4 || bytes[0] != '\n') return false;
  const size_t length_bytes = (bytes[1] & 0x80) != 0 ? 2 : 1;
  return bytes[1 + length_bytes] == '\n';
}

absl::StatusOr<std::unique_ptr<Tokenizer>> ReadSentencePiece(absl::string_view proto_bytes,
                                                             const std::string& config_json) {
  CONVENE_ASSIGN_OR_RETURN(ModelFile model, ParseModelFile(proto_bytes));
  auto tokenizer =
      std::make_unique<SentencePieceTokenizer>(std::move(model), FingerprintOf(proto_bytes));
  CONVENE_ASSIGN_OR_RETURN(const VocabularyConfig config, ReadVocabularyConfig(config_json));
  CONVENE_RETURN_IF_ERROR(tokenizer->Configure(config));
  CONVENE_RETURN_IF_ERROR(tokenizer->Build());
  return tokenizer;
}

}  // namespace convene::worker

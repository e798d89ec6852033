#include "worker_runtime/tokenizer/json/tokenizer_json.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/tokenizer/fingerprint.h"
#include "worker_runtime/tokenizer/json/added_tokens.h"
#include "worker_runtime/tokenizer/json/json_node.h"
#include "worker_runtime/tokenizer/json/post_processor.h"
#include "worker_runtime/tokenizer/json/pre_tokenizer.h"
#include "worker_runtime/tokenizer/json/text_normalizer.h"
#include "worker_runtime/tokenizer/json/token_decoder.h"
#include "worker_runtime/tokenizer/json/token_model.h"
#include "worker_runtime/tokenizer/tokenizer_config.h"
#include "worker_runtime/tokenizer/unicode.h"

namespace convene::worker {
namespace {

// Changes when the same file would give other ids than before. Another number refuses all prepared
// data and all runs in flight, so that a change to rare texts alone may leave it (README.md).
constexpr int64_t kRulesVersion = 2;

struct Parts {
  TextNormalizer normalizer;
  PreTokenizer pre_tokenizer;
  std::unique_ptr<TokenModel> model;
  AddedTokens added;
  TokenDecoder decoder;
  AddedAround frame;
  std::optional<int32_t> end_of_document;
};

int VocabularySize(const Parts& parts) {
  return std::max(parts.model->vocabulary().id_count(), parts.added.id_count());
}

class JsonEncoder : public Encoder {
 public:
  JsonEncoder(const Parts* parts, SpecialText special_text)
      : parts_(*parts),
        with_specials_(special_text == SpecialText::kAsTokens),
        pieces_encoder_(parts->model->NewEncoder()) {}

  void Encode(absl::string_view text, std::vector<int32_t>* ids) override {
    text = ValidUtf8(text, &repaired_);
    const auto take = [&](const AddedTokens::Cut& cut) {
      if (cut.id >= 0) return ids->push_back(cut.id);
      const size_t at_start = cut.begin == 0 ? CharacterAt(text, 0).bytes : 0;
      EncodeText(text.substr(cut.begin, cut.end - cut.begin), at_start, ids);
    };
    parts_.added.ForEachCut(text, /*normalized=*/false, with_specials_, take);
  }

 private:
  // `text` has no added tokens but normalised ones.
  void EncodeText(absl::string_view text, size_t at_start, std::vector<int32_t>* ids) {
    text = parts_.normalizer.Apply(text, &at_start, &normalizer_scratch_);
    const auto take = [&](const AddedTokens::Cut& cut) {
      if (cut.id >= 0) return ids->push_back(cut.id);
      const TextPiece piece = {text.substr(cut.begin, cut.end - cut.begin),
                               at_start - std::min(at_start, cut.begin)};
      parts_.pre_tokenizer.Apply(piece, &piece_scratch_, [&](const TextPiece& part) {
        pieces_encoder_->Encode(part.text, ids);
      });
    };
    parts_.added.ForEachCut(text, /*normalized=*/true, with_specials_, take);
  }

  const Parts& parts_;
  const bool with_specials_;
  const std::unique_ptr<PieceEncoder> pieces_encoder_;
  std::string repaired_;
  TextNormalizer::Scratch normalizer_scratch_;
  PreTokenizer::Scratch piece_scratch_;
};

class JsonTokenizer : public Tokenizer {
 public:
  JsonTokenizer(Parts parts, uint64_t fingerprint) : parts_(std::move(parts)) {
    kind_ = absl::StrCat("tokenizer.json (", parts_.model->type(), ")");
    fingerprint_ = fingerprint;
    vocabulary_size_ = VocabularySize(parts_);
    prefix_ = parts_.frame.prefix;
    suffix_ = parts_.frame.suffix;
    end_of_document_ = parts_.end_of_document;
    byte_ends_.reserve(static_cast<size_t>(vocabulary_size_));
    for (int32_t id = 0; id < vocabulary_size_; ++id) {
      if (SpecialTextOf(id).empty()) bytes_ += parts_.decoder.Bytes(TokenText(id));
      byte_ends_.push_back(bytes_.size());
    }
  }

  std::unique_ptr<Encoder> NewEncoder(SpecialText special_text) const override {
    return std::make_unique<JsonEncoder>(&parts_, special_text);
  }
  std::optional<int32_t> SpecialId(absl::string_view text) const override {
    if (!parts_.added.IsSpecial(text)) return std::nullopt;
    return parts_.added.Find(text);
  }
  std::string SpecialTextOf(int32_t id) const override {
    const AddedToken* const token = parts_.added.Find(id);
    return token != nullptr && parts_.added.IsSpecial(token->content) ? token->content : "";
  }
  std::string AddedTextOf(int32_t id) const override {
    const AddedToken* const token = parts_.added.Find(id);
    return token != nullptr ? token->content : "";
  }
  void AppendTokenBytes(int32_t id, std::string* bytes) const override {
    if (id < 0 || static_cast<size_t>(id) >= byte_ends_.size()) return;
    const size_t begin = id == 0 ? 0 : byte_ends_[id - 1];
    bytes->append(bytes_, begin, byte_ends_[id] - begin);
  }

  std::string Decode(absl::Span<const int32_t> ids, bool show_specials) const override {
    std::vector<std::string> tokens;
    tokens.reserve(ids.size());
    for (const int32_t id : ids) {
      if (parts_.added.Find(id) == nullptr && !parts_.model->vocabulary().Has(id)) continue;
      // The original asks for the text, so that a special token whose text the normalizer changes
      // is not left out.
      const absl::string_view token = TokenText(id);
      if (show_specials || !parts_.added.IsSpecial(token)) tokens.emplace_back(token);
    }
    return parts_.decoder.Decode(std::move(tokens));
  }

 private:
  // Empty for an id that the tokenizer does not have.
  absl::string_view TokenText(int32_t id) const {
    if (parts_.added.Find(id) != nullptr) return parts_.added.DecodedText(id);
    return parts_.model->vocabulary().Token(id);
  }

  const Parts parts_;
  // The bytes of all tokens, one behind the other, and where each ends.
  std::string bytes_;
  std::vector<size_t> byte_ends_;
};

std::optional<int32_t> FindToken(const std::string& text, const Parts& parts) {
  if (text.empty()) return std::nullopt;
  const std::optional<int32_t> added = parts.added.Find(absl::string_view(text));
  return added.has_value() ? added : parts.model->vocabulary().Find(text);
}

absl::Status Configure(const VocabularyConfig& config, Parts* parts) {
  const std::optional<int32_t> bos = FindToken(config.begin_of_document, *parts);
  const std::optional<int32_t> eos = FindToken(config.end_of_document, *parts);
  CONVENE_RETURN_IF_ERROR(ApplyVocabularyConfig(config, bos, eos, &parts->frame));
  parts->end_of_document = FindEndOfDocument(eos, parts->frame, parts->added);
  return absl::OkStatus();
}

absl::StatusOr<Parts> ReadParts(const JsonNode& document, const VocabularyConfig& config) {
  Parts parts;
  if (const auto version = document.Find("version"); version.has_value()) {
    if (version->String().value_or("") != "1.0") {
      return LacksFeature("version", "\"version\" other than \"1.0\"");
    }
  }
  CONVENE_ASSIGN_OR_RETURN(const JsonNode model, document.Get("model"));
  CONVENE_ASSIGN_OR_RETURN(
      const SpecialContents specials,
      AddedTokens::ReadSpecials(document.Find("added_tokens"), config.added_tokens));
  CONVENE_ASSIGN_OR_RETURN(parts.model, ReadModel(model, specials));
  CONVENE_ASSIGN_OR_RETURN(parts.normalizer, TextNormalizer::Read(document.Find("normalizer")));
  CONVENE_ASSIGN_OR_RETURN(parts.pre_tokenizer, PreTokenizer::Read(document.Find("pre_tokenizer")));
  CONVENE_ASSIGN_OR_RETURN(parts.added,
                           AddedTokens::Read(document.Find("added_tokens"), config.added_tokens,
                                             parts.model->vocabulary(), parts.normalizer));
  CONVENE_ASSIGN_OR_RETURN(parts.decoder, TokenDecoder::Read(document.Find("decoder")));
  CONVENE_ASSIGN_OR_RETURN(
      parts.frame, ReadPostProcessor(document.Find("post_processor"), VocabularySize(parts)));
  if (parts.pre_tokenizer.ends_in_spelling() && parts.model->TakeBytes()) {
    parts.pre_tokenizer.LeaveOutSpelling();
  }
  return parts;
}

uint64_t FingerprintOf(absl::string_view json_text, const Parts& parts) {
  Fingerprint fingerprint;
  fingerprint.Add("tokenizer.json");
  fingerprint.Add(kRulesVersion);
  fingerprint.Add(json_text);
  for (const std::vector<int32_t>* side : {&parts.frame.prefix, &parts.frame.suffix}) {
    fingerprint.Add(static_cast<int64_t>(side->size()));
    for (const int32_t id : *side) fingerprint.Add(int64_t{id});
  }
  fingerprint.Add(int64_t{parts.end_of_document.value_or(-1)});
  // Behind all else, so that a tokenizer whose config changes no token keeps its fingerprint.
  for (const AddedToken& token : parts.added.changed()) {
    fingerprint.Add(token.content);
    for (const bool flag :
         {token.single_word, token.lstrip, token.rstrip, token.normalized, token.special}) {
      fingerprint.Add(int64_t{flag});
    }
  }
  return fingerprint.value();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> ReadTokenizerJson(absl::string_view json_text,
                                                             const std::string& config_json) {
  CONVENE_ASSIGN_OR_RETURN(const JsonDocument document, JsonDocument::Parse(json_text));
  CONVENE_ASSIGN_OR_RETURN(const VocabularyConfig config, ReadVocabularyConfig(config_json));
  CONVENE_ASSIGN_OR_RETURN(Parts parts, ReadParts(document.root(), config));
  CONVENE_RETURN_IF_ERROR(Configure(config, &parts));
  const uint64_t fingerprint = FingerprintOf(json_text, parts);
  return std::make_unique<JsonTokenizer>(std::move(parts), fingerprint);
}

}  // namespace convene::worker

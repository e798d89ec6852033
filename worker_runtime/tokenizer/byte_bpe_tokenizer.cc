#include "worker_runtime/tokenizer/byte_bpe_tokenizer.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "tools/base/status_macros.h"
#include "tools/base/text.h"
#include "worker_runtime/tokenizer/byte_bpe.h"
#include "worker_runtime/tokenizer/fingerprint.h"
#include "worker_runtime/tokenizer/json/normalizer_steps.h"
#include "worker_runtime/tokenizer/json/text_normalizer.h"
#include "worker_runtime/tokenizer/split_pattern.h"
#include "worker_runtime/tokenizer/unicode.h"

namespace convene::worker {
namespace {

class ByteBpeTokenizer : public Tokenizer {
 public:
  ByteBpeTokenizer(ByteBpeParts parts, std::unique_ptr<ByteBpe> bpe,
                   std::unique_ptr<SplitPattern> pattern)
      : bpe_(std::move(bpe)),
        pattern_(std::move(pattern)),
        special_tokens_(std::move(parts.special_tokens)),
        normalizer_(parts.is_normalized_to_nfc
                        ? MakeUnicodeForm(UnicodeForm::kNfc, UnicodeMarks::kOfUnicode15)
                        : nullptr) {
    kind_ = std::move(parts.kind);
    prefix_ = std::move(parts.prefix);
    suffix_ = std::move(parts.suffix);
    end_of_document_ = parts.end_of_document;
    const std::vector<std::string>& tokens = bpe_->tokens();
    for (size_t id = 0; id < tokens.size(); ++id) {
      if (!tokens[id].empty()) vocabulary_size_ = static_cast<int>(id) + 1;
    }
    for (const SpecialTokens::Token& token : special_tokens_.tokens()) {
      vocabulary_size_ = std::max(vocabulary_size_, token.id + 1);
    }
    SetFingerprint(parts.pattern);
  }

  std::unique_ptr<Encoder> NewEncoder(SpecialText special_text) const override;

  std::optional<int32_t> SpecialId(absl::string_view text) const override {
    return special_tokens_.IdOf(text);
  }
  std::string SpecialTextOf(int32_t id) const override {
    return std::string(special_tokens_.TextOf(id));
  }
  void AppendTokenBytes(int32_t id, std::string* bytes) const override {
    const std::vector<std::string>& tokens = bpe_->tokens();
    if (id >= 0 && static_cast<size_t>(id) < tokens.size()) bytes->append(tokens[id]);
  }

  std::string Decode(absl::Span<const int32_t> ids, bool show_specials) const override {
    std::string bytes, repaired;
    for (const int32_t id : ids) {
      const absl::string_view special = special_tokens_.TextOf(id);
      if (special.empty()) {
        AppendTokenBytes(id, &bytes);
      } else if (show_specials) {
        bytes.append(special.data(), special.size());
      }
    }
    return std::string(ValidUtf8(bytes, &repaired));
  }

  const ByteBpe& bpe() const { return *bpe_; }
  const SplitPattern& pattern() const { return *pattern_; }
  const SpecialTokens& special_tokens() const { return special_tokens_; }
  const NormalizerStep* normalizer() const { return normalizer_.get(); }

 private:
  void SetFingerprint(absl::string_view pattern) {
    Fingerprint fingerprint;
    fingerprint.Add("byte BPE by rank");
    fingerprint.Add(pattern);
    fingerprint.Add(normalizer_ == nullptr ? "" : "NFC");
    for (const std::string& token : bpe_->tokens()) fingerprint.Add(token);
    for (const SpecialTokens::Token& token : special_tokens_.tokens()) {
      fingerprint.Add(token.text);
      fingerprint.Add(token.id);
    }
    for (const std::vector<int32_t>& ids : {prefix_, suffix_}) {
      fingerprint.Add(static_cast<int64_t>(ids.size()));
      for (const int32_t id : ids) fingerprint.Add(id);
    }
    fingerprint.Add(end_of_document_.value_or(-1));
    fingerprint_ = fingerprint.value();
  }

  // Constant after construction.
  std::unique_ptr<ByteBpe> bpe_;
  std::unique_ptr<SplitPattern> pattern_;
  SpecialTokens special_tokens_;
  std::unique_ptr<NormalizerStep> normalizer_;  // null: none
};

class ByteBpeEncoder : public Encoder {
 public:
  ByteBpeEncoder(const ByteBpeTokenizer& tokenizer, SpecialText special_text)
      : tokenizer_(tokenizer), special_text_(special_text) {}

  void Encode(absl::string_view text, std::vector<int32_t>* ids) override {
    text = ValidUtf8(text, &valid_);
    const NormalizerStep* const normalizer = tokenizer_.normalizer();
    if (normalizer != nullptr && !normalizer->Leaves(text)) {
      normalized_.clear();
      normalizer->Apply(text, /*at_start=*/0, &normalized_);
      text = normalized_;
    }
    if (special_text_ == SpecialText::kAsText) return EncodeOrdinary(text, ids);
    size_t at = 0;
    while (const auto special = tokenizer_.special_tokens().Find(text, at)) {
      EncodeOrdinary(text.substr(at, special->begin - at), ids);
      ids->push_back(special->id);
      at = special->end;
    }
    EncodeOrdinary(text.substr(at), ids);
  }

 private:
  void EncodeOrdinary(absl::string_view text, std::vector<int32_t>* ids) {
    tokenizer_.pattern().ForEach(text, &pieces_, [&](const TextRange& piece) {
      tokenizer_.bpe().Encode(text.substr(piece.begin, piece.end - piece.begin), &scratch_, ids);
    });
  }

  const ByteBpeTokenizer& tokenizer_;
  const SpecialText special_text_;
  ByteBpe::Scratch scratch_;
  std::vector<TextRange> pieces_;
  std::string valid_, normalized_;
};

std::unique_ptr<Encoder> ByteBpeTokenizer::NewEncoder(SpecialText special_text) const {
  return std::make_unique<ByteBpeEncoder>(*this, special_text);
}

absl::Status CheckSpecialTokens(const ByteBpeParts& parts) {
  absl::flat_hash_map<int32_t, const std::string*> text_of;
  for (const SpecialTokens::Token& token : parts.special_tokens) {
    if (token.id < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("the special token ", Utf8(token.text, 100), " has the id ", token.id));
    }
    const auto index = static_cast<size_t>(token.id);
    const auto [other, is_new] = text_of.emplace(token.id, &token.text);
    if (!is_new || (index < parts.tokens.size() && !parts.tokens[index].empty())) {
      return absl::InvalidArgumentError(
          absl::StrCat("id ", token.id, " is the special token ", Utf8(token.text, 100), " and ",
                       is_new ? "an ordinary token" : Utf8(*other->second, 100)));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> MakeByteBpeTokenizer(ByteBpeParts parts) {
  CONVENE_RETURN_IF_ERROR(CheckSpecialTokens(parts));
  CONVENE_ASSIGN_OR_RETURN(auto pattern, MakeSplitPattern(parts.pattern, PatternDialect::kRust));
  CONVENE_ASSIGN_OR_RETURN(auto bpe, ByteBpe::FromRanks(std::move(parts.tokens)));
  return std::make_unique<ByteBpeTokenizer>(std::move(parts), std::move(bpe), std::move(pattern));
}

}  // namespace convene::worker

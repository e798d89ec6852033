#include "worker_runtime/tokenizer/compact_tokenizer.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/tokenizer/fingerprint.h"

namespace convene::worker {
namespace {

constexpr int32_t kNone = -1;

using ByteIds = std::array<int32_t, 256>;

// The bytes by which a token is written where it was cut away.
std::string WrittenBytes(const Tokenizer& whole, int32_t id) {
  std::string bytes = whole.SpecialTextOf(id);
  if (bytes.empty()) whole.AppendTokenBytes(id, &bytes);
  return bytes;
}

// kNone for a byte that no token is alone, nor has in it.
absl::StatusOr<ByteIds> FindByteIds(const Tokenizer& whole) {
  ByteIds ids, holders;  // holders: a token that has the byte
  ids.fill(kNone);
  holders.fill(kNone);
  for (int32_t id = 0; id < whole.vocabulary_size(); ++id) {
    const std::string bytes = WrittenBytes(whole, id);
    for (const char byte : bytes) holders[static_cast<unsigned char>(byte)] = id;
    if (bytes.size() != 1 || !whole.AddedTextOf(id).empty()) continue;
    int32_t& known = ids[static_cast<unsigned char>(bytes[0])];
    // SentencePiece has two tokens for a space. A text's first space is left out where it is an
    // ordinary token, as with the tokens that begin with one; the token of the byte always shows.
    const auto shown = [&whole](int32_t one) { return whole.Decode({&one, 1}, false).size(); };
    if (known == kNone || shown(id) < shown(known)) known = id;
  }
  for (size_t byte = 0; byte < ids.size(); ++byte) {
    if (ids[byte] != kNone || holders[byte] == kNone) continue;
    return absl::UnimplementedError(absl::StrCat(
        "a tokenizer of kind ", whole.kind(), ", whose token ", holders[byte], " has the byte 0x",
        absl::Hex(byte, absl::kZeroPad2),
        ", which is no token alone, cannot have a compact vocabulary: a text with that token could "
        "not be written where it is cut away. Take the whole vocabulary, or a tokenizer with byte "
        "fallback"));
  }
  return ids;
}

class CompactTokenizer : public Tokenizer {
 public:
  CompactTokenizer(std::unique_ptr<Tokenizer> whole, std::vector<int32_t> original_ids,
                   const ByteIds& byte_ids)
      : whole_(std::move(whole)), original_ids_(std::move(original_ids)) {
    compact_ids_.resize(whole_->vocabulary_size(), kNone);
    for (size_t i = 0; i < original_ids_.size(); ++i) {
      compact_ids_[original_ids_[i]] = static_cast<int32_t>(i);
    }
    kind_ = whole_->kind();
    fingerprint_ = CompactFingerprint(whole_->fingerprint(), original_ids_);
    vocabulary_size_ = static_cast<int>(original_ids_.size());
    end_of_document_ = CompactId(whole_->end_of_document());
    named_tokens_.assign(whole_->named_tokens().begin(), whole_->named_tokens().end());
    for (const int32_t id : whole_->prefix()) prefix_.push_back(compact_ids_[id]);
    for (const int32_t id : whole_->suffix()) suffix_.push_back(compact_ids_[id]);
    for (size_t byte = 0; byte < byte_ids.size(); ++byte) {
      byte_ids_[byte] = byte_ids[byte] == kNone ? kNone : compact_ids_[byte_ids[byte]];
    }
  }

  std::unique_ptr<Encoder> NewEncoder(SpecialText special_text) const override;

  std::optional<int32_t> SpecialId(absl::string_view text) const override {
    return CompactId(whole_->SpecialId(text));
  }
  std::string SpecialTextOf(int32_t id) const override {
    return whole_->SpecialTextOf(OriginalId(id));
  }
  std::string AddedTextOf(int32_t id) const override { return whole_->AddedTextOf(OriginalId(id)); }
  void AppendTokenBytes(int32_t id, std::string* bytes) const override {
    whole_->AppendTokenBytes(OriginalId(id), bytes);
  }
  std::string Decode(absl::Span<const int32_t> ids, bool show_specials) const override {
    std::vector<int32_t> original(ids.size());
    std::transform(ids.begin(), ids.end(), original.begin(),
                   [this](int32_t id) { return OriginalId(id); });
    return whole_->Decode(original, show_specials);
  }

  // Appends the ids that stand for an id of the whole tokenizer.
  void AppendCompact(int32_t original_id, std::vector<int32_t>* ids) const {
    const int32_t id = compact_ids_[original_id];
    if (id != kNone) return ids->push_back(id);
    for (const char byte : WrittenBytes(*whole_, original_id)) {
      ids->push_back(byte_ids_[static_cast<unsigned char>(byte)]);
    }
  }

  const Tokenizer& whole() const { return *whole_; }

 private:
  int32_t OriginalId(int32_t id) const {
    return id >= 0 && id < vocabulary_size() ? original_ids_[id] : kNone;
  }
  std::optional<int32_t> CompactId(std::optional<int32_t> original_id) const {
    if (!original_id.has_value() || compact_ids_[*original_id] == kNone) return std::nullopt;
    return compact_ids_[*original_id];
  }

  // Constant after construction.
  std::unique_ptr<Tokenizer> whole_;
  std::vector<int32_t> original_ids_;
  std::vector<int32_t> compact_ids_;  // by original id
  ByteIds byte_ids_;                  // kNone for a byte that no token has
};

class CompactEncoder : public Encoder {
 public:
  CompactEncoder(const CompactTokenizer& tokenizer, SpecialText special_text)
      : tokenizer_(tokenizer), whole_(tokenizer.whole().NewEncoder(special_text)) {}

  void Encode(absl::string_view text, std::vector<int32_t>* ids) override {
    original_.clear();
    whole_->Encode(text, &original_);
    for (const int32_t id : original_) tokenizer_.AppendCompact(id, ids);
  }

 private:
  const CompactTokenizer& tokenizer_;
  const std::unique_ptr<Encoder> whole_;
  std::vector<int32_t> original_;
};

std::unique_ptr<Encoder> CompactTokenizer::NewEncoder(SpecialText special_text) const {
  return std::make_unique<CompactEncoder>(*this, special_text);
}

std::vector<int32_t> IndispensableIdsOf(const Tokenizer& whole, const ByteIds& byte_ids) {
  std::vector<int32_t> ids;
  for (const int32_t id : byte_ids) {
    if (id != kNone) ids.push_back(id);
  }
  ids.insert(ids.end(), whole.prefix().begin(), whole.prefix().end());
  ids.insert(ids.end(), whole.suffix().begin(), whole.suffix().end());
  if (whole.end_of_document().has_value()) ids.push_back(*whole.end_of_document());
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

}  // namespace

absl::StatusOr<std::vector<int32_t>> IndispensableIds(const Tokenizer& whole) {
  CONVENE_ASSIGN_OR_RETURN(const ByteIds byte_ids, FindByteIds(whole));
  return IndispensableIdsOf(whole, byte_ids);
}

absl::StatusOr<std::unique_ptr<Tokenizer>> MakeCompactTokenizer(std::unique_ptr<Tokenizer> whole,
                                                                std::vector<int32_t> original_ids) {
  CONVENE_ASSIGN_OR_RETURN(const ByteIds byte_ids, FindByteIds(*whole));
  const std::vector<int32_t> needed = IndispensableIdsOf(*whole, byte_ids);
  const bool ascends = std::adjacent_find(original_ids.begin(), original_ids.end(),
                                          std::greater_equal<>()) == original_ids.end();
  if (original_ids.empty() || !ascends ||
      !std::includes(original_ids.begin(), original_ids.end(), needed.begin(), needed.end()) ||
      original_ids.front() < 0 || original_ids.back() >= whole->vocabulary_size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the compact vocabulary of ", original_ids.size(), " tokens is not one of this tokenizer (",
        whole->kind(), ", ", whole->vocabulary_size(), " tokens)"));
  }
  return std::make_unique<CompactTokenizer>(std::move(whole), std::move(original_ids), byte_ids);
}

}  // namespace convene::worker

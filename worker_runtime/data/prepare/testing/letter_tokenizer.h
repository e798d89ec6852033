// A tokenizer that a test can read: each byte is a token, 256 ends a document, 257 and 258 stand
// around a text.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "worker_runtime/tokenizer/tokenizer.h"
#include "worker_runtime/tokenizer/unicode.h"

namespace convene::worker {

class LetterTokenizer final : public Tokenizer {
 public:
  static constexpr int32_t kEnd = 256;

  // `replaces_bytes`: bytes that are no UTF-8 are U+FFFD, as in most tokenizers.
  explicit LetterTokenizer(bool has_end = true, bool replaces_bytes = false)
      : replaces_bytes_(replaces_bytes) {
    kind_ = "letters";
    fingerprint_ = has_end ? 71 : 72;
    vocabulary_size_ = 259;
    prefix_ = {257};
    suffix_ = {258};
    if (has_end) end_of_document_ = kEnd;
  }

  std::unique_ptr<Encoder> NewEncoder(SpecialText) const override {
    return std::make_unique<Letters>(replaces_bytes_);
  }
  std::optional<int32_t> SpecialId(absl::string_view) const override { return std::nullopt; }
  std::string SpecialTextOf(int32_t) const override { return ""; }
  void AppendTokenBytes(int32_t id, std::string* bytes) const override {
    if (id >= 0 && id < 256) bytes->push_back(static_cast<char>(id));
  }
  std::string Decode(absl::Span<const int32_t> ids, bool show_specials) const override {
    std::string text;
    for (const int32_t id : ids) {
      AppendTokenBytes(id, &text);
      if (show_specials && id >= 256) text += id == kEnd ? "|" : id == 257 ? "<" : ">";
    }
    return text;
  }

 private:
  class Letters final : public Encoder {
   public:
    explicit Letters(bool replaces_bytes) : replaces_bytes_(replaces_bytes) {}
    void Encode(absl::string_view text, std::vector<int32_t>* ids) override {
      std::string repaired;
      if (replaces_bytes_) text = ValidUtf8(text, &repaired);
      for (const char letter : text) ids->push_back(static_cast<uint8_t>(letter));
    }

   private:
    const bool replaces_bytes_;
  };
  const bool replaces_bytes_;
};

}  // namespace convene::worker

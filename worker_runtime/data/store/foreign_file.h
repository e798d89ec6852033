// The common part of the formats of other programs.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/types/span.h"
#include "tools/base/check.h"
#include "worker_runtime/data/store/mapped_file.h"
#include "worker_runtime/data/store/token_source.h"
#include "worker_runtime/data/store/token_values.h"

namespace convene::worker {

// Tokens of one width side by side in one file, which says nothing of a vocabulary. All of them
// count, unless a format knows better. A format sets what is protected once, when it is opened.
class ForeignFile : public TokenSource {
 public:
  const std::string& path() const override { return tokens_.path(); }
  int64_t token_count() const override { return token_count_; }
  int64_t file_bytes() const override { return tokens_.size(); }
  int vocabulary_size() const override { return 0; }
  const TokenizerIdentity& tokenizer() const override { return tokenizer_; }
  uint64_t content_hash() const override { return tokens_.QuickHash(); }
  void Read(int64_t first, int64_t count, int32_t* tokens) const override {
    CONVENE_CHECK(first >= 0 && count >= 0 && first <= token_count_ - count);
    ReadTokens(type_, tokens_.data() + tokens_begin_ + first * TokenBytes(type_), count, tokens);
  }
  bool has_counted() const override { return false; }
  void ReadCounted(int64_t first, int64_t count, uint8_t* counted) const override {
    CONVENE_CHECK(first >= 0 && count >= 0 && first <= token_count_ - count);
    std::fill_n(counted, count, uint8_t{1});
  }
  absl::Span<const uint16_t> token_bytes() const override { return {}; }

 protected:
  explicit ForeignFile(MappedFile tokens) : tokens_(std::move(tokens)) {}

  MappedFile tokens_;
  int64_t tokens_begin_ = 0;  // bytes before the first token
  TokenType type_ = TokenType::kU16;
  int64_t token_count_ = 0;
  TokenizerIdentity tokenizer_;
};

}  // namespace convene::worker

// nanotron's tokens, as datatrove writes them (datatrove/pipeline/tokens/tokenizer.py):
//
//   x.ds            the tokens, two or four bytes each, little endian and unsigned
//   x.ds.index      u64 for each document: the token at which it ends; may be absent
//   x.ds.metadata   text: "TOKENIZER|BYTES A TOKEN", the number of tokens, the same for people; an
//                   old one has no "|BYTES" and means two; may be absent
//   x.ds.loss       a byte for each token: 0 where it does not count in the loss; may be absent
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "worker_runtime/data/store/mapped_file.h"
#include "worker_runtime/data/store/token_source.h"
#include "worker_runtime/data/store/token_values.h"

namespace convene::worker {

// The names beside x.ds.
std::string NanotronIndexPath(const std::string& path);
std::string NanotronMetadataPath(const std::string& path);
std::string NanotronLossPath(const std::string& path);

// PURE. The words of the metadata.
struct NanotronMetadata {
  std::string tokenizer;
  std::optional<int> token_bytes;
  std::optional<int64_t> token_count;
};
// InvalidArgument: a width other than 2 and 4, or a count that is no number.
absl::StatusOr<NanotronMetadata> ParseNanotronMetadata(absl::string_view text);

class NanotronFile final : public TokenSource {
 public:
  // DataLoss: the files contradict each other. InvalidArgument: neither the metadata nor the index
  // says how wide a token is.
  static absl::StatusOr<std::unique_ptr<NanotronFile>> Open(const std::string& path);

  std::string kind() const override { return "nanotron .ds"; }
  const std::string& path() const override { return tokens_.path(); }
  int64_t token_count() const override { return token_count_; }
  int64_t file_bytes() const override;
  int vocabulary_size() const override { return 0; }
  const TokenizerIdentity& tokenizer() const override { return tokenizer_; }
  uint64_t content_hash() const override;
  int64_t document_count() const override;
  int64_t document_end(int64_t document) const override;
  bool knows_documents() const override { return index_.has_value(); }
  void Read(int64_t first, int64_t count, int32_t* tokens) const override;
  bool has_counted() const override { return loss_.has_value(); }
  void ReadCounted(int64_t first, int64_t count, uint8_t* counted) const override;
  absl::Span<const uint16_t> token_bytes() const override { return {}; }

 private:
  explicit NanotronFile(MappedFile tokens) : tokens_(std::move(tokens)) {}
  absl::Status ReadAll();
  absl::Status DecideWidth(std::optional<int> said);
  absl::Status CheckDocuments() const;
  uint64_t IndexAt(int64_t document) const;

  MappedFile tokens_;
  std::optional<MappedFile> index_;
  std::optional<MappedFile> loss_;
  TokenizerIdentity tokenizer_;
  TokenType type_ = TokenType::kU16;
  int64_t token_count_ = 0;
};

}  // namespace convene::worker

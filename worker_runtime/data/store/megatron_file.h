// Megatron-LM's indexed dataset: tokens in x.bin, their cut into sequences and documents in x.idx.
//
// The index, little endian and unaligned (megatron/core/datasets/indexed_dataset.py): 9 bytes
// "MMIDIDX\0\0"; u64 version 1; u8 type of a token (1 uint8, 2 int8, 3 int16, 4 int32, 5 int64, 6
// and 7 floats, 8 uint16); u64 sequences S; u64 D, one more than the documents; i32 x S lengths in
// tokens; i64 x S byte offsets in the .bin; i64 x D first sequence of each document, then S; where
// there are modes (images), u8 x S more.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker_runtime/data/store/mapped_file.h"
#include "worker_runtime/data/store/token_source.h"
#include "worker_runtime/data/store/token_values.h"

namespace convene::worker {

constexpr char kMegatronMagic[] = "MMIDIDX\0";  // with the string's own end, nine bytes

class MegatronFile final : public TokenSource {
 public:
  // `path`: x.bin, x.idx or x. Reads the index once. DataLoss: the index is damaged, or says
  // something else than the .bin holds. FailedPrecondition: another version. InvalidArgument:
  // tokens that are floats. NotFound: one of the two is not there (named).
  static absl::StatusOr<std::unique_ptr<MegatronFile>> Open(const std::string& path);

  std::string kind() const override { return "Megatron .bin/.idx"; }
  const std::string& path() const override { return tokens_.path(); }
  int64_t token_count() const override { return token_count_; }
  int64_t file_bytes() const override { return tokens_.size() + index_.size(); }
  int vocabulary_size() const override { return 0; }
  const TokenizerIdentity& tokenizer() const override { return tokenizer_; }
  uint64_t content_hash() const override;
  int64_t document_count() const override { return document_count_; }
  int64_t document_end(int64_t document) const override;
  int64_t sequence_count() const override { return sequence_count_; }
  int64_t sequence_end(int64_t sequence) const override;
  void Read(int64_t first, int64_t count, int32_t* tokens) const override;
  bool has_counted() const override { return false; }
  void ReadCounted(int64_t first, int64_t count, uint8_t* counted) const override;
  absl::Span<const uint16_t> token_bytes() const override { return {}; }

 private:
  MegatronFile(MappedFile tokens, MappedFile index)
      : tokens_(std::move(tokens)), index_(std::move(index)) {}
  absl::Status ReadIndex();
  absl::Status CheckSequences() const;
  absl::Status CheckDocuments() const;
  int64_t OffsetOf(int64_t sequence) const;

  MappedFile tokens_;
  MappedFile index_;
  TokenizerIdentity tokenizer_;
  TokenType type_ = TokenType::kU16;
  int64_t token_count_ = 0;
  int64_t sequence_count_ = 0;
  int64_t document_count_ = 0;
};

// x.bin and x.idx of `path`, which is one of them or x.
struct MegatronPaths {
  std::string tokens, index;
};
MegatronPaths MegatronPathsOf(const std::string& path);

}  // namespace convene::worker

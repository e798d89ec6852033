// llm.c's tokens: 256 int32 (magic, version, number of tokens, zeros), then the tokens. GPT-2's
// have magic 20240520, version 1 and uint16; Llama 3's 20240801, version 7 and uint32
// (dev/data/data_common.py, llmc/dataloader.h). Documents are not known: one token that the reader
// does not know stands before each.
#pragma once

#include <cstdint>
#include <memory>
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

constexpr int32_t kLlmcGpt2Magic = 20240520;
constexpr int32_t kLlmcLlama3Magic = 20240801;
constexpr int32_t kLlmcGpt2Version = 1;
constexpr int32_t kLlmcLlama3Version = 7;
constexpr int64_t kLlmcHeaderBytes = 1024;

// Whether a file that begins with these bytes is one of llm.c's token files.
bool IsLlmc(absl::string_view begin);

class LlmcFile final : public TokenSource {
 public:
  // DataLoss: not that header, or another length than it says. FailedPrecondition: another version.
  static absl::StatusOr<std::unique_ptr<LlmcFile>> Open(const std::string& path);

  std::string kind() const override;
  const std::string& path() const override { return file_.path(); }
  int64_t token_count() const override { return token_count_; }
  int64_t file_bytes() const override { return file_.size(); }
  int vocabulary_size() const override { return 0; }
  const TokenizerIdentity& tokenizer() const override { return tokenizer_; }
  uint64_t content_hash() const override { return file_.QuickHash(); }
  int64_t document_count() const override { return 1; }
  int64_t document_end(int64_t document) const override;
  bool knows_documents() const override { return false; }
  void Read(int64_t first, int64_t count, int32_t* tokens) const override;
  bool has_counted() const override { return false; }
  void ReadCounted(int64_t first, int64_t count, uint8_t* counted) const override;
  absl::Span<const uint16_t> token_bytes() const override { return {}; }

 private:
  explicit LlmcFile(MappedFile file) : file_(std::move(file)) {}
  absl::Status ReadHeader();

  MappedFile file_;
  TokenizerIdentity tokenizer_;
  TokenType type_ = TokenType::kU16;
  int64_t token_count_ = 0;
};

}  // namespace convene::worker

#include <cstring>

#include "absl/strings/str_cat.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/data/store/foreign_file.h"
#include "worker_runtime/data/store/foreign_formats.h"

namespace convene::worker {
namespace {

class LlmcFile final : public ForeignFile {
 public:
  explicit LlmcFile(MappedFile tokens) : ForeignFile(std::move(tokens)) {}

  absl::Status ReadHeader() {
    if (tokens_.size() < kLlmcHeaderBytes || !IsLlmc(tokens_.bytes())) {
      return absl::DataLossError("does not begin as llm.c's token files do, or is cut short");
    }
    int32_t header[3];
    std::memcpy(header, tokens_.data(), sizeof(header));
    const bool is_gpt2 = header[0] == kLlmcGpt2Magic;
    const int32_t version = is_gpt2 ? kLlmcGpt2Version : kLlmcLlama3Version;
    if (header[1] != version) {
      return absl::FailedPreconditionError(
          absl::StrCat("llm.c's format version ", header[1], "; this program reads ", version));
    }
    tokens_begin_ = kLlmcHeaderBytes;
    type_ = is_gpt2 ? TokenType::kU16 : TokenType::kU32;
    token_count_ = header[2];
    if (token_count_ < 0 || kLlmcHeaderBytes + token_count_ * TokenBytes(type_) != tokens_.size()) {
      return absl::DataLossError(absl::StrCat("says that it has ", header[2], " tokens of ",
                                              TokenBytes(type_), " bytes, but has ", tokens_.size(),
                                              " bytes: damaged, or not copied whole"));
    }
    return absl::OkStatus();
  }

  TokenFormat format() const override { return TokenFormat::kLlmc; }
  std::string kind() const override {
    return type_ == TokenType::kU16 ? "llm.c .bin (GPT-2)" : "llm.c .bin (Llama 3)";
  }
  int64_t document_count() const override { return 1; }
  int64_t document_end(int64_t document) const override {
    CONVENE_CHECK(document == 0);
    return token_count_;
  }
  bool knows_documents() const override { return false; }
};

}  // namespace

bool IsLlmc(absl::string_view begin) {
  int32_t magic = 0;
  if (begin.size() < sizeof(magic)) return false;
  std::memcpy(&magic, begin.data(), sizeof(magic));
  return magic == kLlmcGpt2Magic || magic == kLlmcLlama3Magic;
}

absl::StatusOr<std::unique_ptr<TokenSource>> OpenLlmc(const std::string& path) {
  CONVENE_ASSIGN_OR_RETURN(MappedFile tokens, MappedFile::Open(path));
  auto file = std::make_unique<LlmcFile>(std::move(tokens));
  CONVENE_RETURN_IF_ERROR(Annotate(file->ReadHeader(), path));
  return file;
}

}  // namespace convene::worker

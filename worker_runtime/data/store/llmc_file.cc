#include "worker_runtime/data/store/llmc_file.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "tools/base/check.h"
#include "tools/base/status_macros.h"

namespace convene::worker {

bool IsLlmc(absl::string_view begin) {
  int32_t magic = 0;
  if (begin.size() < sizeof(magic)) return false;
  std::memcpy(&magic, begin.data(), sizeof(magic));
  return magic == kLlmcGpt2Magic || magic == kLlmcLlama3Magic;
}

absl::StatusOr<std::unique_ptr<LlmcFile>> LlmcFile::Open(const std::string& path) {
  CONVENE_ASSIGN_OR_RETURN(MappedFile mapped, MappedFile::Open(path));
  std::unique_ptr<LlmcFile> file(new LlmcFile(std::move(mapped)));
  CONVENE_RETURN_IF_ERROR(Annotate(file->ReadHeader(), path));
  return file;
}

absl::Status LlmcFile::ReadHeader() {
  if (file_.size() < kLlmcHeaderBytes || !IsLlmc(file_.bytes())) {
    return absl::DataLossError("does not begin as llm.c's token files do, or is cut short");
  }
  int32_t header[3];
  std::memcpy(header, file_.data(), sizeof(header));
  const bool is_gpt2 = header[0] == kLlmcGpt2Magic;
  const int32_t version = is_gpt2 ? kLlmcGpt2Version : kLlmcLlama3Version;
  if (header[1] != version) {
    return absl::FailedPreconditionError(
        absl::StrCat("llm.c's format version ", header[1], "; this program reads ", version));
  }
  type_ = is_gpt2 ? TokenType::kU16 : TokenType::kU32;
  token_count_ = header[2];
  if (token_count_ < 0 || kLlmcHeaderBytes + token_count_ * TokenBytes(type_) != file_.size()) {
    return absl::DataLossError(absl::StrCat("says that it has ", header[2], " tokens of ",
                                            TokenBytes(type_), " bytes, but has ", file_.size(),
                                            " bytes: damaged, or not copied whole"));
  }
  return absl::OkStatus();
}

std::string LlmcFile::kind() const {
  return type_ == TokenType::kU16 ? "llm.c .bin (GPT-2)" : "llm.c .bin (Llama 3)";
}

int64_t LlmcFile::document_end(int64_t document) const {
  CONVENE_CHECK(document == 0);
  return token_count_;
}

void LlmcFile::Read(int64_t first, int64_t count, int32_t* tokens) const {
  CONVENE_CHECK(first >= 0 && count >= 0 && first <= token_count_ - count);
  ReadTokens(type_, file_.data() + kLlmcHeaderBytes + first * TokenBytes(type_), count, tokens);
}

void LlmcFile::ReadCounted(int64_t first, int64_t count, uint8_t* counted) const {
  CONVENE_CHECK(first >= 0 && count >= 0 && first <= token_count_ - count);
  std::memset(counted, 1, count);
}

}  // namespace convene::worker

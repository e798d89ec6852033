#include "worker_runtime/data/store/nanotron_file.h"

#include <xxhash.h>

#include <cstring>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tools/base/check.h"
#include "tools/base/status_macros.h"
#include "tools/base/text.h"

namespace convene::worker {
namespace {

constexpr int64_t kIndexBytes = 8;
constexpr size_t kMetadataBytesMax = 4096;

// Absent where there is no such file.
absl::StatusOr<std::optional<MappedFile>> OpenIfThere(const std::string& path) {
  absl::StatusOr<MappedFile> file = MappedFile::Open(path);
  if (absl::IsNotFound(file.status())) return std::nullopt;
  if (!file.ok()) return file.status();
  return std::optional<MappedFile>(*std::move(file));
}

}  // namespace

std::string NanotronIndexPath(const std::string& path) { return path + ".index"; }
std::string NanotronMetadataPath(const std::string& path) { return path + ".metadata"; }
std::string NanotronLossPath(const std::string& path) { return path + ".loss"; }

absl::StatusOr<NanotronMetadata> ParseNanotronMetadata(absl::string_view text) {
  const std::vector<absl::string_view> lines = absl::StrSplit(text, '\n');
  NanotronMetadata metadata;
  // The width follows the last bar: a tokenizer's name may have bars of its own.
  const size_t bar = lines[0].rfind('|');
  const absl::string_view name = lines[0].substr(0, bar);
  metadata.tokenizer = Utf8(name, 200);
  metadata.token_bytes = 2;
  if (bar != absl::string_view::npos) {
    const absl::string_view width = absl::StripAsciiWhitespace(lines[0].substr(bar + 1));
    if (width != "2" && width != "4") {
      return absl::InvalidArgumentError(
          absl::StrCat("says that a token has '", Utf8(width, 20), "' bytes; it must be 2 or 4"));
    }
    metadata.token_bytes = width == "2" ? 2 : 4;
  }
  if (lines.size() < 2) return metadata;
  int64_t count = 0;
  if (!absl::SimpleAtoi(lines[1], &count) || count < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("its second line is '", Utf8(lines[1], 20), "' instead of a number"));
  }
  metadata.token_count = count;
  return metadata;
}

absl::StatusOr<std::unique_ptr<NanotronFile>> NanotronFile::Open(const std::string& path) {
  CONVENE_ASSIGN_OR_RETURN(MappedFile mapped, MappedFile::Open(path));
  std::unique_ptr<NanotronFile> file(new NanotronFile(std::move(mapped)));
  CONVENE_RETURN_IF_ERROR(file->ReadAll());
  return file;
}

absl::Status NanotronFile::ReadAll() {
  CONVENE_ASSIGN_OR_RETURN(index_, OpenIfThere(NanotronIndexPath(path())));
  CONVENE_ASSIGN_OR_RETURN(loss_, OpenIfThere(NanotronLossPath(path())));
  const std::string metadata_path = NanotronMetadataPath(path());
  CONVENE_ASSIGN_OR_RETURN(const std::optional<MappedFile> said, OpenIfThere(metadata_path));
  NanotronMetadata metadata;
  if (said.has_value()) {
    absl::StatusOr<NanotronMetadata> parsed =
        ParseNanotronMetadata(said->bytes().substr(0, kMetadataBytesMax));
    if (!parsed.ok()) return Annotate(parsed.status(), metadata_path);
    metadata = *std::move(parsed);
  }
  tokenizer_.path = metadata.tokenizer;
  CONVENE_RETURN_IF_ERROR(DecideWidth(metadata.token_bytes));
  if (metadata.token_count.has_value() && *metadata.token_count != token_count_) {
    return absl::DataLossError(absl::StrCat(
        metadata_path, " says that there are ", *metadata.token_count, " tokens; ", path(), " has ",
        token_count_, " of ", TokenBytes(type_), " bytes: damaged, or not copied whole"));
  }
  if (loss_.has_value() && loss_->size() != token_count_) {
    return absl::DataLossError(absl::StrCat(loss_->path(), " has ", loss_->size(), " bytes for ",
                                            token_count_, " tokens: one was not copied whole"));
  }
  return CheckDocuments();
}

// The index's last end is the number of tokens, and so the width can be found without metadata.
absl::Status NanotronFile::DecideWidth(std::optional<int> said) {
  if (index_.has_value() && index_->size() % kIndexBytes != 0) {
    return absl::DataLossError(absl::StrCat(index_->path(), " has ", index_->size(),
                                            " bytes, not 8 for each document: cut short"));
  }
  std::optional<int> width = said;
  if (index_.has_value() && index_->size() > 0) {
    const uint64_t tokens = IndexAt(index_->size() / kIndexBytes - 1);
    const auto bytes = static_cast<uint64_t>(tokens_.size());
    const bool two = tokens <= bytes && tokens * 2 == bytes;
    const bool four = tokens <= bytes && tokens * 4 == bytes;
    if ((!two && !four) || (said.has_value() && *said != (two ? 2 : 4) && bytes > 0)) {
      return absl::DataLossError(absl::StrCat(
          index_->path(), " says that ", path(), " has ", tokens, " tokens, but it has ", bytes,
          " bytes", said.has_value() ? absl::StrCat(", ", *said, " a token") : "",
          ": the two are not of one run, or one was not copied whole"));
    }
    if (!width.has_value()) width = two ? 2 : 4;
  }
  if (!width.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat(
        path(), ": how wide a token is, ", NanotronMetadataPath(path()), " or ",
        NanotronIndexPath(path()), " must say, and neither does: copy them beside it"));
  }
  if (tokens_.size() % *width != 0) {
    return absl::DataLossError(absl::StrCat(path(), " has ", tokens_.size(), " bytes, not ", *width,
                                            " for each token: cut short"));
  }
  type_ = *width == 2 ? TokenType::kU16 : TokenType::kU32;
  token_count_ = tokens_.size() / *width;
  return absl::OkStatus();
}

absl::Status NanotronFile::CheckDocuments() const {
  if (!index_.has_value()) return absl::OkStatus();
  uint64_t last = 0;
  for (int64_t document = 0; document < document_count(); ++document) {
    const uint64_t end = IndexAt(document);
    if (end < last || end > static_cast<uint64_t>(token_count_)) {
      return absl::DataLossError(absl::StrCat(index_->path(), ": document ", document,
                                              " ends at token ", end, ", the one before at ", last,
                                              " of ", token_count_));
    }
    last = end;
  }
  if (last == static_cast<uint64_t>(token_count_)) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat(index_->path(), " ends at token ", last, "; ", path(), " has ", token_count_));
}

uint64_t NanotronFile::IndexAt(int64_t document) const {
  uint64_t end;
  std::memcpy(&end, index_->data() + document * kIndexBytes, sizeof(end));
  return end;
}

int64_t NanotronFile::file_bytes() const {
  return tokens_.size() + (index_.has_value() ? index_->size() : 0) +
         (loss_.has_value() ? loss_->size() : 0);
}

uint64_t NanotronFile::content_hash() const {
  const uint64_t tokens = tokens_.QuickHash();
  if (!loss_.has_value()) return tokens;
  return XXH3_64bits_withSeed(&tokens, sizeof(tokens), loss_->QuickHash());
}

int64_t NanotronFile::document_count() const {
  return index_.has_value() ? index_->size() / kIndexBytes : 1;
}

int64_t NanotronFile::document_end(int64_t document) const {
  CONVENE_CHECK(document >= 0 && document < document_count());
  return index_.has_value() ? static_cast<int64_t>(IndexAt(document)) : token_count_;
}

void NanotronFile::Read(int64_t first, int64_t count, int32_t* tokens) const {
  CONVENE_CHECK(first >= 0 && count >= 0 && first <= token_count_ - count);
  ReadTokens(type_, tokens_.data() + first * TokenBytes(type_), count, tokens);
}

void NanotronFile::ReadCounted(int64_t first, int64_t count, uint8_t* counted) const {
  CONVENE_CHECK(first >= 0 && count >= 0 && first <= token_count_ - count);
  if (!loss_.has_value()) {
    std::memset(counted, 1, count);
    return;
  }
  for (int64_t i = 0; i < count; ++i) counted[i] = loss_->data()[first + i] != 0 ? 1 : 0;
}

}  // namespace convene::worker

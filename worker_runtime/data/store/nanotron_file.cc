#include <xxhash.h>

#include <cstring>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "tools/base/status_macros.h"
#include "tools/base/text.h"
#include "worker_runtime/data/store/foreign_file.h"
#include "worker_runtime/data/store/foreign_formats.h"
#include "worker_runtime/data/store/token_blocks.h"

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

struct Metadata {
  std::string tokenizer;
  std::optional<int> token_bytes;
  std::optional<int64_t> token_count;
};

absl::StatusOr<Metadata> ParseMetadata(absl::string_view text) {
  const size_t end = text.find('\n');
  const absl::string_view first = text.substr(0, end);
  Metadata metadata;
  // The width follows the last bar: a tokenizer's name may have bars of its own.
  const size_t bar = first.rfind('|');
  metadata.tokenizer = Utf8(first.substr(0, bar), 200);
  metadata.token_bytes = 2;
  if (bar != absl::string_view::npos) {
    const absl::string_view width = absl::StripAsciiWhitespace(first.substr(bar + 1));
    if (width != "2" && width != "4") {
      return absl::InvalidArgumentError(
          absl::StrCat("says that a token has '", Utf8(width, 20), "' bytes; it must be 2 or 4"));
    }
    metadata.token_bytes = width == "2" ? 2 : 4;
  }
  if (end == absl::string_view::npos) return metadata;
  const absl::string_view second = text.substr(end + 1, text.find('\n', end + 1) - end - 1);
  int64_t count = 0;
  if (!absl::SimpleAtoi(second, &count) || count < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("its second line is '", Utf8(second, 20), "' instead of a number"));
  }
  metadata.token_count = count;
  return metadata;
}

class NanotronFile final : public ForeignFile {
 public:
  explicit NanotronFile(MappedFile tokens) : ForeignFile(std::move(tokens)) {}

  absl::Status ReadAll();

  TokenFormat format() const override { return TokenFormat::kNanotron; }
  std::string kind() const override { return "nanotron .ds"; }
  int64_t file_bytes() const override;
  uint64_t content_hash() const override;
  int64_t document_count() const override;
  int64_t document_end(int64_t document) const override;
  bool knows_documents() const override { return index_.has_value(); }
  bool has_counted() const override { return loss_.has_value(); }
  void ReadCounted(int64_t first, int64_t count, uint8_t* counted) const override;

 private:
  absl::Status DecideWidth(std::optional<int> said);
  uint64_t IndexAt(int64_t document) const;

  std::optional<MappedFile> index_;
  std::optional<MappedFile> loss_;
};

absl::Status NanotronFile::ReadAll() {
  CONVENE_ASSIGN_OR_RETURN(index_, OpenIfThere(NanotronIndexPath(path())));
  CONVENE_ASSIGN_OR_RETURN(loss_, OpenIfThere(NanotronLossPath(path())));
  const std::string metadata_path = NanotronMetadataPath(path());
  CONVENE_ASSIGN_OR_RETURN(const std::optional<MappedFile> said, OpenIfThere(metadata_path));
  Metadata metadata;
  if (said.has_value()) {
    absl::StatusOr<Metadata> parsed = ParseMetadata(said->bytes().substr(0, kMetadataBytesMax));
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
  if (!index_.has_value()) return absl::OkStatus();
  return Annotate(CheckDocumentEnds(*this), index_->path());
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

void NanotronFile::ReadCounted(int64_t first, int64_t count, uint8_t* counted) const {
  ForeignFile::ReadCounted(first, count, counted);
  if (!loss_.has_value()) return;
  for (int64_t i = 0; i < count; ++i) counted[i] = loss_->data()[first + i] != 0 ? 1 : 0;
}

}  // namespace

std::string NanotronIndexPath(const std::string& path) { return path + ".index"; }
std::string NanotronMetadataPath(const std::string& path) { return path + ".metadata"; }
std::string NanotronLossPath(const std::string& path) { return path + ".loss"; }

absl::StatusOr<std::unique_ptr<TokenSource>> OpenNanotron(const std::string& path) {
  CONVENE_ASSIGN_OR_RETURN(MappedFile tokens, MappedFile::Open(path));
  auto file = std::make_unique<NanotronFile>(std::move(tokens));
  CONVENE_RETURN_IF_ERROR(file->ReadAll());
  return file;
}

}  // namespace convene::worker

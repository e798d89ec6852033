#include <xxhash.h>

#include <cstring>
#include <iterator>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/data/store/foreign_file.h"
#include "worker_runtime/data/store/foreign_formats.h"

namespace convene::worker {
namespace {

constexpr int64_t kMagicBytes = 9;
constexpr int64_t kHeaderBytes = 34;

template <typename T>
T Load(const char* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(value));
  return value;
}

// By the code in the index.
constexpr std::optional<TokenType> kTypes[] = {std::nullopt,    TokenType::kU8,  TokenType::kI8,
                                               TokenType::kI16, TokenType::kI32, TokenType::kI64,
                                               std::nullopt,    std::nullopt,    TokenType::kU16};

class MegatronFile final : public ForeignFile {
 public:
  MegatronFile(MappedFile tokens, MappedFile index)
      : ForeignFile(std::move(tokens)), index_(std::move(index)) {}

  absl::Status ReadIndex();

  TokenFormat format() const override { return TokenFormat::kMegatron; }
  std::string kind() const override { return "Megatron .bin/.idx"; }
  int64_t file_bytes() const override { return tokens_.size() + index_.size(); }
  uint64_t content_hash() const override;
  int64_t document_count() const override { return document_count_; }
  int64_t document_end(int64_t document) const override;
  int64_t sequence_count() const override { return sequence_count_; }
  int64_t sequence_end(int64_t sequence) const override;

 private:
  absl::Status CheckSequences() const;
  absl::Status CheckDocuments() const;
  int64_t OffsetOf(int64_t sequence) const;

  MappedFile index_;
  int64_t sequence_count_ = 0;
  int64_t document_count_ = 0;
};

absl::Status MegatronFile::ReadIndex() {
  const int64_t bytes = index_.size();
  if (bytes < kHeaderBytes || std::memcmp(index_.data(), kMegatronMagic, kMagicBytes) != 0) {
    return absl::DataLossError("does not begin as an index of Megatron's does");
  }
  const uint64_t version = Load<uint64_t>(index_.data() + 9);
  if (version != 1) {
    return absl::FailedPreconditionError(
        absl::StrCat("index version ", version, "; this program reads 1"));
  }
  const uint8_t code = Load<uint8_t>(index_.data() + 17);
  if (code >= std::size(kTypes) || !kTypes[code].has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("its tokens have type ", static_cast<int>(code),
                     ", which is no whole number (6 and 7 are floats): not token ids"));
  }
  type_ = *kTypes[code];
  const uint64_t sequences = Load<uint64_t>(index_.data() + 18);
  const uint64_t documents = Load<uint64_t>(index_.data() + 26);
  // First each count alone, so that the sum cannot overflow.
  const uint64_t largest = static_cast<uint64_t>(bytes);
  const uint64_t needed = kHeaderBytes + 12 * sequences + 8 * documents;
  if (sequences > largest || documents > largest ||
      (needed != largest && needed + sequences != largest)) {
    return absl::DataLossError(absl::StrCat("has ", bytes, " bytes, which do not hold ", sequences,
                                            " sequences and ", documents,
                                            " ends of documents: damaged or cut short"));
  }
  sequence_count_ = static_cast<int64_t>(sequences);
  if (documents < 1) return absl::DataLossError("says nothing of documents");
  document_count_ = static_cast<int64_t>(documents) - 1;
  token_count_ = tokens_.size() / TokenBytes(type_);
  CONVENE_RETURN_IF_ERROR(CheckSequences());
  return CheckDocuments();
}

// The sequences must lie one behind the other and fill the .bin.
absl::Status MegatronFile::CheckSequences() const {
  int64_t end = 0;
  for (int64_t sequence = 0; sequence < sequence_count_; ++sequence) {
    const auto length = Load<int32_t>(index_.data() + kHeaderBytes + 4 * sequence);
    const int64_t offset = OffsetOf(sequence);
    if (length < 0 || offset != end) {
      return absl::DataLossError(absl::StrCat("sequence ", sequence, " has ", length,
                                              " tokens at byte ", offset, " instead of ", end,
                                              ": the index is damaged"));
    }
    end += int64_t{length} * TokenBytes(type_);
  }
  if (end == tokens_.size()) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat("says that ", tokens_.path(), " holds ", end, " bytes (", sequence_count_,
                   " sequences of ", NameOf(type_), "), but it has ", tokens_.size(),
                   ": the two are not of one run, or one was not copied whole"));
}

absl::Status MegatronFile::CheckDocuments() const {
  const char* const firsts = index_.data() + kHeaderBytes + 12 * sequence_count_;
  int64_t last = 0;
  for (int64_t i = 0; i <= document_count_; ++i) {
    const auto first = Load<int64_t>(firsts + 8 * i);
    if (first < last || (i == 0 && first != 0)) {
      return absl::DataLossError(absl::StrCat("document ", i, " begins with sequence ", first,
                                              ", which is before the last one's end"));
    }
    last = first;
  }
  if (last == sequence_count_) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("its documents end at sequence ", last, " of ",
                                          sequence_count_, ": the index was not finished"));
}

int64_t MegatronFile::OffsetOf(int64_t sequence) const {
  return Load<int64_t>(index_.data() + kHeaderBytes + 4 * sequence_count_ + 8 * sequence);
}

uint64_t MegatronFile::content_hash() const {
  const uint64_t index = index_.QuickHash();
  return XXH3_64bits_withSeed(&index, sizeof(index), tokens_.QuickHash());
}

int64_t MegatronFile::sequence_end(int64_t sequence) const {
  CONVENE_CHECK(sequence >= 0 && sequence < sequence_count_);
  if (sequence + 1 == sequence_count_) return token_count_;
  return OffsetOf(sequence + 1) / TokenBytes(type_);
}

int64_t MegatronFile::document_end(int64_t document) const {
  CONVENE_CHECK(document >= 0 && document < document_count_);
  const auto sequences =
      Load<int64_t>(index_.data() + kHeaderBytes + 12 * sequence_count_ + 8 * (document + 1));
  return sequences == 0 ? 0 : sequence_end(sequences - 1);
}

}  // namespace

MegatronPaths MegatronPathsOf(const std::string& path) {
  absl::string_view prefix = path;
  if (!absl::ConsumeSuffix(&prefix, ".bin")) absl::ConsumeSuffix(&prefix, ".idx");
  return {absl::StrCat(prefix, ".bin"), absl::StrCat(prefix, ".idx")};
}

absl::StatusOr<std::unique_ptr<TokenSource>> OpenMegatron(const std::string& path) {
  const MegatronPaths paths = MegatronPathsOf(path);
  CONVENE_ASSIGN_OR_RETURN(MappedFile index, MappedFile::Open(paths.index));
  CONVENE_ASSIGN_OR_RETURN(MappedFile tokens, MappedFile::Open(paths.tokens));
  auto file = std::make_unique<MegatronFile>(std::move(tokens), std::move(index));
  CONVENE_RETURN_IF_ERROR(Annotate(file->ReadIndex(), paths.index));
  return file;
}

}  // namespace convene::worker

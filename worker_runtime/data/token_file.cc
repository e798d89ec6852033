#include "worker_runtime/data/token_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstddef>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "tools/base/check.h"
#include "tools/base/files.h"
#include "tools/base/status_macros.h"

namespace convene::worker {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little endian");

constexpr char kMagic[] = "CNVTOKEN";

struct Header {
  char magic[8];
  uint32_t version;
  uint32_t element_bytes;
  int64_t token_count;
  uint64_t source_key;
  uint32_t vocabulary_size;
  uint32_t zero_1;
  uint64_t content_hash;
  uint64_t zero_2;
  uint64_t checksum;  // XXH3-64 of the 56 bytes before it
};
static_assert(sizeof(Header) == 64 && offsetof(Header, checksum) == 56);

uint64_t ChecksumOf(const Header& header) {
  return XXH3_64bits(&header, offsetof(Header, checksum));
}

bool IsElementWidth(int64_t bytes) { return bytes == 1 || bytes == 2 || bytes == 4; }

absl::Status CheckHeader(const Header& header, int64_t file_bytes) {
  if (std::memcmp(header.magic, kMagic, sizeof(header.magic)) != 0) {
    return absl::DataLossError("not a token file, or one that was never finished");
  }
  if (header.version != kTokenFileVersion) {
    return absl::FailedPreconditionError(absl::StrCat("format version ", header.version,
                                                      "; this program reads ", kTokenFileVersion));
  }
  if (header.checksum != ChecksumOf(header) || !IsElementWidth(header.element_bytes) ||
      header.token_count < 0) {
    return absl::DataLossError("the header is damaged");
  }
  const int64_t bytes = static_cast<int64_t>(sizeof(Header)) +
                        header.token_count * static_cast<int64_t>(header.element_bytes);
  if (bytes == file_bytes) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("has ", file_bytes, " bytes instead of ", bytes, " for ",
                                          header.token_count, " tokens of ", header.element_bytes,
                                          " bytes"));
}

template <typename T>
void Widen(const char* source, int64_t count, int32_t* tokens) {
  for (int64_t i = 0; i < count; ++i) {
    T token;
    std::memcpy(&token, source + i * sizeof(T), sizeof(T));
    tokens[i] = static_cast<int32_t>(token);
  }
}

}  // namespace

absl::StatusOr<TokenFile> TokenFile::Open(const std::string& path) {
  UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return ErrnoStatus(errno, absl::StrCat("open ", path));
  struct stat info;
  if (fstat(fd.get(), &info) != 0) return ErrnoStatus(errno, absl::StrCat("stat ", path));
  if (info.st_size < static_cast<int64_t>(sizeof(Header))) {
    return absl::DataLossError(absl::StrCat(path, ": shorter than a token file's header"));
  }
  const size_t bytes = info.st_size;
  void* mapping = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd.get(), 0);
  if (mapping == MAP_FAILED) return ErrnoStatus(errno, absl::StrCat("map ", path));
  const std::shared_ptr<const char> owner(
      static_cast<const char*>(mapping),
      [bytes](const char* address) { munmap(const_cast<char*>(address), bytes); });
  Header header;
  std::memcpy(&header, mapping, sizeof(header));
  if (absl::Status status = CheckHeader(header, info.st_size); !status.ok()) {
    return Annotate(status, path);
  }
  TokenFile file;
  file.token_count_ = header.token_count;
  file.vocabulary_size_ = static_cast<int>(header.vocabulary_size);
  file.element_bytes_ = static_cast<int>(header.element_bytes);
  file.source_key_ = header.source_key;
  file.content_hash_ = header.content_hash;
  file.tokens_ = std::shared_ptr<const char>(owner, owner.get() + sizeof(Header));
  return file;
}

void TokenFile::Read(int64_t first, int64_t count, int32_t* tokens) const {
  CONVENE_CHECK(first >= 0 && count >= 0 && first <= token_count_ - count);
  const char* source = tokens_.get() + first * element_bytes_;
  switch (element_bytes_) {
    case 1:
      return Widen<uint8_t>(source, count, tokens);
    case 2:
      return Widen<uint16_t>(source, count, tokens);
    default:
      return Widen<uint32_t>(source, count, tokens);
  }
}

bool TokenFile::Contains(int32_t token) const {
  std::array<int32_t, 4096> block;
  int64_t count = 0;
  for (int64_t first = 0; first < token_count_; first += count) {
    count = std::min<int64_t>(block.size(), token_count_ - first);
    Read(first, count, block.data());
    const auto end = block.begin() + count;
    if (std::find(block.begin(), end, token) != end) return true;
  }
  return false;
}

void TokenFileWriter::FreeHash::operator()(XXH3_state_s* state) const { XXH3_freeState(state); }

absl::StatusOr<TokenFileWriter> TokenFileWriter::Create(const std::string& path, int element_bytes,
                                                        int vocabulary_size, uint64_t source_key) {
  if (!IsElementWidth(element_bytes) || vocabulary_size < 1 ||
      (element_bytes < 4 && vocabulary_size > 1 << (8 * element_bytes))) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": ", vocabulary_size, " tokens do not fit ", element_bytes, " bytes (1, 2 or 4)"));
  }
  TokenFileWriter writer;
  writer.hash_.reset(XXH3_createState());
  CONVENE_CHECK(writer.hash_ != nullptr && XXH3_64bits_reset(writer.hash_.get()) == XXH_OK);
  CONVENE_ASSIGN_OR_RETURN(writer.fd_, OpenFile(path, O_WRONLY | O_CREAT | O_TRUNC));
  writer.path_ = path;
  writer.element_bytes_ = element_bytes;
  writer.vocabulary_size_ = vocabulary_size;
  writer.source_key_ = source_key;
  CONVENE_RETURN_IF_ERROR(WriteAll(writer.fd_.get(), std::string(sizeof(Header), '\0'), path));
  return writer;
}

absl::Status TokenFileWriter::Append(absl::Span<const char> token_bytes) {
  CONVENE_CHECK(token_bytes.size() % element_bytes_ == 0);
  bytes_written_ += static_cast<int64_t>(token_bytes.size());
  CONVENE_CHECK(XXH3_64bits_update(hash_.get(), token_bytes.data(), token_bytes.size()) == XXH_OK);
  return WriteAll(fd_.get(), absl::string_view(token_bytes.data(), token_bytes.size()), path_);
}

absl::Status TokenFileWriter::Finish() {
  Header header = {};
  std::memcpy(header.magic, kMagic, sizeof(header.magic));
  header.version = kTokenFileVersion;
  header.element_bytes = element_bytes_;
  header.token_count = bytes_written_ / element_bytes_;
  header.source_key = source_key_;
  header.vocabulary_size = vocabulary_size_;
  header.content_hash = XXH3_64bits_digest(hash_.get());
  header.checksum = ChecksumOf(header);
  if (lseek(fd_.get(), 0, SEEK_SET) != 0) return ErrnoStatus(errno, absl::StrCat("seek ", path_));
  CONVENE_RETURN_IF_ERROR(WriteAll(
      fd_.get(), absl::string_view(reinterpret_cast<const char*>(&header), sizeof(header)), path_));
  return SyncFile(fd_.get(), path_);
}

}  // namespace convene::worker

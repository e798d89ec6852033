#include "worker_runtime/data/store/token_layout.h"

#include <xxhash.h>

#include <bit>
#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"
#include "tools/base/rounding.h"

namespace convene::worker {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little endian");

constexpr int64_t kPartAlignment = 8;

bool IsWidth(uint32_t bytes) { return bytes == 1 || bytes == 2 || bytes == 4; }

}  // namespace

TokenType TypeOf(const TokenFileHeader& header) {
  if (header.element_bytes == 1) return TokenType::kU8;
  return header.element_bytes == 2 ? TokenType::kU16 : TokenType::kU32;
}

uint64_t ChecksumOf(const TokenFileHeader& header) {
  return XXH3_64bits(&header, offsetof(TokenFileHeader, checksum));
}

int TokenWidth(int vocabulary_size) {
  if (vocabulary_size <= 1 << 8) return 1;
  return vocabulary_size <= 1 << 16 ? 2 : 4;
}

TokenFileParts PartsOf(const TokenFileHeader& header) {
  TokenFileParts parts;
  parts.tokens =
      RoundUp(static_cast<int64_t>(sizeof(header)) + header.identity_bytes, kPartAlignment);
  parts.documents =
      RoundUp(parts.tokens + header.token_count * header.element_bytes, kPartAlignment);
  parts.counted = parts.documents + header.document_count * static_cast<int64_t>(sizeof(int64_t));
  parts.end = parts.counted + (HasCounted(header) ? CeilDivide(header.token_count, 8) : 0);
  return parts;
}

bool CountsFit(const TokenFileHeader& header, int64_t file_bytes) {
  return IsWidth(header.element_bytes) && header.token_count >= 0 &&
         header.token_count <= file_bytes / header.element_bytes && header.document_count >= 0 &&
         header.document_count <= file_bytes / static_cast<int64_t>(sizeof(int64_t)) &&
         header.identity_bytes >= 0 && header.identity_bytes <= file_bytes &&
         header.vocabulary_size >= 1 &&
         header.vocabulary_size <= static_cast<uint32_t>(std::numeric_limits<int>::max());
}

absl::Status CheckHeader(const TokenFileHeader& header, int64_t file_bytes) {
  if (std::memcmp(header.magic, kTokenFileMagic, sizeof(header.magic)) != 0) {
    return absl::DataLossError("not a token file, or one that was never finished");
  }
  if (header.version != kTokenFileVersion && header.version != kCompactTokenFileVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat("format version ", header.version, "; this program reads ", kTokenFileVersion,
                     " and ", kCompactTokenFileVersion,
                     ": make the file again with this program (convene data prepare)"));
  }
  if (header.checksum != ChecksumOf(header) || header.token_count < 0 ||
      header.document_count < 0 || header.identity_bytes < 0) {
    return absl::DataLossError("the header is damaged");
  }
  const bool fits = CountsFit(header, file_bytes);
  if (fits && PartsOf(header).end == file_bytes) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(
      "has ", file_bytes, " bytes", fits ? absl::StrCat(" instead of ", PartsOf(header).end) : "",
      " for ", header.token_count, " tokens of ", header.element_bytes, " bytes in ",
      header.document_count, " documents"));
}

}  // namespace convene::worker

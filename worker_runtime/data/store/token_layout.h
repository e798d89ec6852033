// PURE. The header of our token file, and the checks of it. README.md has the table.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "worker_runtime/data/store/token_values.h"

namespace convene::worker {

// The versions of the file's layout; a file of another version is made anew. The second one has a
// compact vocabulary, which programs that know the first alone take for damage.
constexpr uint32_t kTokenFileVersion = 3;
constexpr uint32_t kCompactTokenFileVersion = 4;

struct TokenFileHeader {
  char magic[8];
  uint32_t version;
  uint32_t element_bytes;
  int64_t token_count;
  uint64_t source_key;
  uint32_t vocabulary_size;
  uint32_t flags;
  uint64_t token_hash;  // XXH3-64, as all hashes here
  int64_t document_count;
  uint64_t document_hash;
  uint64_t counted_hash;
  uint64_t identity_hash;
  int64_t identity_bytes;
  uint64_t zero[4];
  uint64_t checksum;  // of the 120 bytes before it
};
static_assert(sizeof(TokenFileHeader) == 128 && offsetof(TokenFileHeader, checksum) == 120);

constexpr char kTokenFileMagic[] = "CNVTOKEN";
constexpr uint32_t kHasCounted = 1;

inline bool HasCounted(const TokenFileHeader& header) { return (header.flags & kHasCounted) != 0; }

// How the tokens are written: uint8, uint16 or uint32.
TokenType TypeOf(const TokenFileHeader& header);

uint64_t ChecksumOf(const TokenFileHeader& header);

// 1, 2 or 4: the narrowest that holds every id below `vocabulary_size`.
int TokenWidth(int vocabulary_size);

// Where the parts of a file lie. Each begins at a multiple of eight bytes.
struct TokenFileParts {
  int64_t tokens = 0;
  int64_t documents = 0;
  int64_t counted = 0;
  int64_t end = 0;  // of the file
};
// REQUIRES: CheckHeader is OK with the header, or its counts are those of a file that can exist.
TokenFileParts PartsOf(const TokenFileHeader& header);

// DataLoss: not a header, a damaged one, or one for a file of another length; FailedPrecondition:
// another version. The text is to follow the path.
absl::Status CheckHeader(const TokenFileHeader& header, int64_t file_bytes);

// The same without checksum and magic: whether the counts are those of a file of `file_bytes` at
// most. A state of TokenFileWriter has them without a header.
bool CountsFit(const TokenFileHeader& header, int64_t file_bytes);

}  // namespace convene::worker

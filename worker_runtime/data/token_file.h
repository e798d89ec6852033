// A file of tokens, mapped into memory. Its format is in README.md.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "tools/base/unique_fd.h"

struct XXH3_state_s;  // of xxhash.h

namespace convene::worker {

// The version of the file's layout; a file of another version is made anew.
constexpr uint32_t kTokenFileVersion = 2;

// Read-only and thread-safe; copies share the mapping. The file must not be cut short while it is
// mapped (reading past its end kills the process), which is why it is only ever replaced by rename.
class TokenFile {
 public:
  // DataLoss when the header is damaged or the file's length is not the one in the header;
  // FailedPrecondition for another version.
  static absl::StatusOr<TokenFile> Open(const std::string& path);

  int64_t token_count() const { return token_count_; }
  // Every token is in [0, vocabulary_size).
  int vocabulary_size() const { return vocabulary_size_; }
  // Identifies the texts that the tokens were made from (PrepareTokenFile).
  uint64_t source_key() const { return source_key_; }
  // XXH3-64 of the tokens' bytes: equal for equal tokens, whatever files they came from.
  uint64_t content_hash() const { return content_hash_; }

  // REQUIRES: 0 <= first, 0 <= count, first + count <= token_count(); `tokens` holds `count`.
  void Read(int64_t first, int64_t count, int32_t* tokens) const;

  // Whether the token occurs: looks from the start until it does.
  bool Contains(int32_t token) const;

 private:
  TokenFile() = default;

  int64_t token_count_ = 0;
  int vocabulary_size_ = 0;
  int element_bytes_ = 1;
  uint64_t source_key_ = 0;
  uint64_t content_hash_ = 0;
  std::shared_ptr<const char> tokens_;  // unmaps when the last copy goes
};

// Writes a token file piece by piece under the name `path`, which is not a token file until Finish:
// the header, whose checksum makes it one, is written last. Not thread-safe.
class TokenFileWriter {
 public:
  // `element_bytes`: 1, 2 or 4, wide enough for vocabulary_size (else InvalidArgument). Replaces
  // `path`.
  static absl::StatusOr<TokenFileWriter> Create(const std::string& path, int element_bytes,
                                                int vocabulary_size, uint64_t source_key);

  // The bytes of little-endian tokens. REQUIRES: a multiple of element_bytes.
  absl::Status Append(absl::Span<const char> token_bytes);

  // Writes the header and fsyncs. That the tokens are inside the vocabulary is the caller's
  // promise.
  absl::Status Finish();

 private:
  struct FreeHash {
    void operator()(XXH3_state_s* state) const;
  };

  TokenFileWriter() = default;

  UniqueFd fd_;
  std::string path_;
  int element_bytes_ = 1;
  int vocabulary_size_ = 0;
  uint64_t source_key_ = 0;
  int64_t bytes_written_ = 0;
  std::unique_ptr<XXH3_state_s, FreeHash> hash_;  // of what was appended
};

}  // namespace convene::worker

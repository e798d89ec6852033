// Our file of tokens: one file with the tokens, where the documents end, which tokens count, and
// how the ids were made. Its format is in README.md.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "tools/base/unique_fd.h"
#include "worker_runtime/data/store/mapped_file.h"
#include "worker_runtime/data/store/token_layout.h"
#include "worker_runtime/data/store/token_source.h"

struct XXH3_state_s;  // of xxhash.h

namespace convene::worker {

// The facts that a writer must know from the start.
struct TokenFileInfo {
  // Every id is below it. Decides the width of a token: 1, 2 or 4 bytes.
  int vocabulary_size = 0;
  TokenizerIdentity tokenizer;
  // By id, vocabulary_size of them; or empty: unknown.
  std::vector<uint16_t> token_bytes;
  // Identifies the texts that the tokens are made from (PrepareTokenFile).
  uint64_t source_key = 0;
  // Whether a bit for each token says if it counts in the loss.
  bool has_counted = false;
};

class TokenFile final : public TokenSource {
 public:
  // Compares the header, the tokenizer's part and the documents with their checksums; tokens and
  // counted bits only VerifyChecksums compares. DataLoss: damaged, or of another length than the
  // header says; FailedPrecondition: another version.
  static absl::StatusOr<std::unique_ptr<TokenFile>> Open(const std::string& path);

  uint64_t source_key() const { return header_.source_key; }

  TokenFormat format() const override { return TokenFormat::kConvene; }
  std::string kind() const override { return "Convene token file"; }
  const std::string& path() const override { return file_.path(); }
  int64_t token_count() const override { return header_.token_count; }
  int64_t file_bytes() const override { return file_.size(); }
  int vocabulary_size() const override { return static_cast<int>(header_.vocabulary_size); }
  const TokenizerIdentity& tokenizer() const override { return tokenizer_; }
  // XXH3-64 of the tokens' bytes, as they stand in the file; with counted bits, of this hash and
  // that of the bits.
  uint64_t content_hash() const override;
  int64_t document_count() const override { return header_.document_count; }
  int64_t document_end(int64_t document) const override;
  void Read(int64_t first, int64_t count, int32_t* tokens) const override;
  bool has_counted() const override { return HasCounted(header_); }
  void ReadCounted(int64_t first, int64_t count, uint8_t* counted) const override;
  absl::Span<const uint16_t> token_bytes() const override { return token_bytes_; }
  absl::Status VerifyChecksums(
      const std::function<void(int64_t done_tokens)>& progress) const override;

 private:
  explicit TokenFile(MappedFile file) : file_(std::move(file)) {}
  absl::Status ReadAll();

  MappedFile file_;
  TokenFileHeader header_ = {};
  TokenizerIdentity tokenizer_;
  std::vector<uint16_t> token_bytes_;
};

// Writes a token file piece by piece under the name `path`, which is not a token file until Finish:
// the header, whose checksum makes it one, is written last. Until then two more files stand beside
// it: "`path`.documents" and "`path`.counted". Memory is a few MiB, whatever the file's size. The
// bytes of the finished file depend on what was appended alone, not on the pieces or on Sync and
// Resume. Not thread-safe. After an error only Discard is of use.
class TokenFileWriter {
 public:
  // Replaces `path`. InvalidArgument: vocabulary_size < 1, or token_bytes of another size.
  static absl::StatusOr<TokenFileWriter> Create(const std::string& path, const TokenFileInfo& info);

  // Goes on where `state`, a text that Sync gave, was written, after the process was killed or
  // closed the file: what came later is cut off. Reads the tokens once, to compare them with the
  // state's hash. InvalidArgument: not such a text. DataLoss: the files are shorter than they were,
  // or other ones. NotFound: one is not there; a file that Finish completed stands alone, and
  // TokenFile opens it.
  static absl::StatusOr<TokenFileWriter> Resume(const std::string& path, absl::string_view state);

  // Removes an unfinished file and those beside it. A file that is not there is fine.
  static void Discard(const std::string& path);

  // Adds tokens to the current document. `counted` has one 0 or 1 for each id, or is empty: all
  // count. InvalidArgument: an id outside the vocabulary. REQUIRES: `counted` is empty unless
  // has_counted.
  absl::Status Append(absl::Span<const int32_t> ids, absl::Span<const uint8_t> counted);

  // The next token belongs to another document. A document may be empty.
  absl::Status EndDocument();

  // Brings all that was appended to the disk. The text is below 300 bytes, without newlines.
  absl::StatusOr<std::string> Sync();

  // Ends the current document if it has tokens, joins the files, writes the header and fsyncs.
  absl::Status Finish();

  int64_t token_count() const { return token_count_; }
  int64_t document_count() const { return document_count_; }

 private:
  struct FreeHash {
    void operator()(XXH3_state_s* state) const;
  };

  TokenFileWriter() = default;
  absl::Status OpenSideFiles(int flags);
  absl::Status ResumeAt(const TokenFileHeader& state);
  absl::Status Rehash();
  void AppendCounted(absl::Span<const uint8_t> counted, size_t count);
  absl::Status Flush();
  absl::Status Join(int side_fd, const std::string& side_path, int64_t bytes, uint64_t* hash);

  std::string path_;
  TokenFileHeader header_ = {};  // what does not change while tokens are appended
  UniqueFd fd_, documents_fd_, counted_fd_;
  int64_t token_count_ = 0;
  int64_t document_count_ = 0;
  int64_t document_begin_ = 0;
  int64_t uncached_bytes_ = 0;  // of the file, from its beginning: left to the disk
  std::string token_buffer_, document_buffer_, counted_buffer_;
  // The bits of the tokens since the last whole byte, the first in the lowest bit.
  uint8_t open_bits_ = 0;
  std::unique_ptr<XXH3_state_s, FreeHash> hash_;  // of the tokens that left the buffer
};

// Writes the documents of `source` as a token file. `change` may set other ids in the place of the
// tokens from `first` on, before they are written. After an error nothing is left under the name.
absl::Status WriteDocuments(const TokenSource& source, const TokenFileInfo& info,
                            const std::string& path,
                            absl::FunctionRef<void(int64_t first, absl::Span<int32_t> ids)> change);

}  // namespace convene::worker

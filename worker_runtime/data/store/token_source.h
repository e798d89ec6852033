// A mapped file of tokens, of any format that we read.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace convene::worker {

// A tokenizer's vocabulary cut to some of its tokens: id i is the tokenizer's own original_ids[i].
struct CompactVocabulary {
  std::vector<int32_t> original_ids;  // ascending
  int whole_size = 0;                 // Tokenizer::vocabulary_size() of the tokenizer itself
  uint64_t whole_fingerprint = 0;     // and its Tokenizer::fingerprint()
};

// How the ids were made, as far as the file says.
struct TokenizerIdentity {
  std::string kind;          // Tokenizer::kind(); empty: the file does not say
  std::string path;          // where it was read from, for people
  uint64_t fingerprint = 0;  // Tokenizer::fingerprint(); 0: the file does not say
  std::optional<int32_t> end_of_document;
  std::optional<CompactVocabulary> compact;  // absent: the ids are the tokenizer's own
};

enum class TokenFormat { kConvene, kMegatron, kLlmc, kNanotron };

// Read-only and thread-safe. The file must not be cut short while it is mapped (reading past its
// end kills the process), which is why files are only ever replaced by rename.
class TokenSource {
 public:
  virtual ~TokenSource() = default;

  virtual TokenFormat format() const = 0;
  virtual std::string kind() const = 0;  // "Convene token file", "Megatron .bin/.idx", ...
  virtual const std::string& path() const = 0;
  virtual int64_t token_count() const = 0;
  // Bytes of all of its files.
  virtual int64_t file_bytes() const = 0;
  // 0: the file does not say; then only Read tells.
  virtual int vocabulary_size() const = 0;
  // The same without the tokenizer's special tokens behind all others and behind the end of a
  // document (Tokenizer::document_vocabulary_size), as far as token_bytes() tell: a model may lack
  // these where no document of the file has them, which only Read tells.
  virtual int document_vocabulary_size() const;
  virtual const TokenizerIdentity& tokenizer() const = 0;
  // Equal for equal tokens that count alike; of formats that keep none, of the size and pieces of
  // the file, so that opening a large file stays quick.
  virtual uint64_t content_hash() const = 0;

  // Documents lie one behind the other; document i is the tokens [document_end(i - 1),
  // document_end(i)). A format that does not know its documents (llm.c) has one.
  virtual int64_t document_count() const = 0;
  virtual int64_t document_end(int64_t document) const = 0;
  int64_t document_begin(int64_t document) const {
    return document == 0 ? 0 : document_end(document - 1);
  }
  virtual bool knows_documents() const { return true; }

  // The pieces that Megatron's order shuffles: a document's sentences where its index has them,
  // else the documents.
  virtual int64_t sequence_count() const { return document_count(); }
  virtual int64_t sequence_end(int64_t sequence) const { return document_end(sequence); }

  // An id that is negative or above 2^31 - 1 in the file reads as -1, which no vocabulary has.
  // REQUIRES: 0 <= first, 0 <= count, first + count <= token_count(); `tokens` holds `count`.
  virtual void Read(int64_t first, int64_t count, int32_t* tokens) const = 0;

  // Whether only a part of the tokens counts in the loss (instruction data). Without, all count.
  virtual bool has_counted() const = 0;
  // counted[i] is 1 where token first + i counts in the loss as a target, else 0.
  virtual void ReadCounted(int64_t first, int64_t count, uint8_t* counted) const = 0;

  // Bytes of text that each id stands for, by id, for bits per byte; empty: the file does not say.
  virtual absl::Span<const uint16_t> token_bytes() const = 0;

  // Compares all bytes with the checksums that the format has, beyond what opening it compared.
  // DataLoss, with the path. Reads the whole file. `progress` is called now and then from the
  // calling thread, never where the format has no checksums, and may be empty.
  virtual absl::Status VerifyChecksums(
      const std::function<void(int64_t done_tokens)>& /*progress*/) const {
    return absl::OkStatus();
  }
};

// The format of what OpenTokenSource(path) would open, by the first bytes, the name and its
// neighbours; absent: not tokens (a text, say), or no such file.
std::optional<TokenFormat> TokenFormatOf(const std::string& path);

// Opens `path` by its content: ours, Megatron's (x.bin or x.idx or the common prefix x), llm.c's,
// nanotron's (x.ds). NotFound; InvalidArgument: none of these; DataLoss: damaged, cut short, or an
// index that lies about its tokens; FailedPrecondition: another version; else as
// tools/base/files.h. All with the path.
absl::StatusOr<std::unique_ptr<TokenSource>> OpenTokenSource(const std::string& path);

// FailedPrecondition: one id means two tokens in two of the sources, by the fingerprints of those
// that say one; with both, and what to do.
absl::Status CheckSameVocabulary(absl::Span<const TokenSource* const> sources);

}  // namespace convene::worker

// A file of tokens in plain values: for people (`convene data show`), and for a check of all its
// bytes (`convene data verify`).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker_runtime/data/store/token_source.h"

namespace convene::worker {

struct TokenDescription {
  std::string kind;
  std::string path;
  int64_t file_bytes = 0;
  int64_t tokens = 0;
  std::optional<int64_t> documents;  // absent: the format does not know them
  std::optional<int64_t> longest_document, shortest_document;  // in tokens; absent: no documents
  std::optional<int> vocabulary_size;
  TokenizerIdentity tokenizer;
  bool has_counted = false;
};
// Reads the ends of the documents, no tokens.
TokenDescription Describe(const TokenSource& source);

struct DocumentSample {
  int64_t document_tokens = 0;  // of the whole document
  std::vector<int32_t> ids;
  std::vector<uint8_t> counted;  // one for each id; empty: all count
};
// The first `tokens_max` tokens of a document. REQUIRES: 0 <= document < document_count().
DocumentSample SampleOf(const TokenSource& source, int64_t document, int64_t tokens_max);

struct VerifyReport {
  int64_t tokens = 0;
  int64_t documents = 0;
  int64_t counted = 0;  // tokens that count in the loss
  int32_t largest_id = -1;
  std::optional<int64_t> text_bytes;  // that the tokens stand for; absent: not known
};
// Reads the whole file: checksums, ids below the vocabulary (where the file says one), ends of
// documents in order and within the tokens. DataLoss: the first thing that is wrong, with the path.
// `progress` is called now and then from the calling thread, and may be empty; it counts each token
// as often as it is read.
absl::StatusOr<VerifyReport> VerifyTokens(
    const TokenSource& source, const std::function<void(int64_t done, int64_t total)>& progress);

}  // namespace convene::worker

#include "worker_runtime/data/store/describe.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/data/store/token_blocks.h"

namespace convene::worker {
namespace {

// Adds a block that begins at token `first` to the report.
absl::Status Look(const TokenSource& source, int64_t first, absl::Span<const int32_t> ids,
                  absl::Span<const uint8_t> counted, VerifyReport* report) {
  const int limit =
      source.vocabulary_size() > 0 ? source.vocabulary_size() : std::numeric_limits<int32_t>::max();
  const absl::Span<const uint16_t> bytes_of = source.token_bytes();
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= limit) {
      return absl::DataLossError(absl::StrCat(
          source.path(), ": token ", first + static_cast<int64_t>(i), " is ",
          ids[i] < 0 ? std::string("negative or above 2147483647") : absl::StrCat(ids[i]),
          ", outside the vocabulary of ", limit));
    }
    report->largest_id = std::max(report->largest_id, ids[i]);
    report->counted += counted.empty() ? 1 : counted[i];
    if (!bytes_of.empty()) *report->text_bytes += bytes_of[ids[i]];
  }
  return absl::OkStatus();
}

}  // namespace

TokenDescription Describe(const TokenSource& source) {
  TokenDescription description;
  description.kind = source.kind();
  description.path = source.path();
  description.file_bytes = source.file_bytes();
  description.tokens = source.token_count();
  if (source.vocabulary_size() > 0) description.vocabulary_size = source.vocabulary_size();
  description.tokenizer = source.tokenizer();
  description.has_counted = source.has_counted();
  if (!source.knows_documents()) return description;
  description.documents = source.document_count();
  int64_t begin = 0;
  for (int64_t document = 0; document < source.document_count(); ++document) {
    const int64_t end = source.document_end(document);
    const int64_t tokens = end - begin;
    begin = end;
    description.longest_document = std::max(description.longest_document.value_or(tokens), tokens);
    description.shortest_document =
        std::min(description.shortest_document.value_or(tokens), tokens);
  }
  return description;
}

DocumentSample SampleOf(const TokenSource& source, int64_t document, int64_t tokens_max) {
  const int64_t begin = source.document_begin(document);
  DocumentSample sample;
  sample.document_tokens = source.document_end(document) - begin;
  const int64_t count = std::min(sample.document_tokens, std::max<int64_t>(0, tokens_max));
  sample.ids.resize(count);
  source.Read(begin, count, sample.ids.data());
  if (source.has_counted()) {
    sample.counted.resize(count);
    source.ReadCounted(begin, count, sample.counted.data());
  }
  return sample;
}

absl::StatusOr<VerifyReport> VerifyTokens(
    const TokenSource& source, const std::function<void(int64_t done, int64_t total)>& progress) {
  CONVENE_RETURN_IF_ERROR(Annotate(CheckDocumentEnds(source), source.path()));
  VerifyReport report;
  report.tokens = source.token_count();
  report.documents = source.document_count();
  if (!source.token_bytes().empty()) report.text_bytes = 0;
  // First, so that a flipped bit is told as such, not as the strange id that it makes.
  int64_t compared = 0;
  CONVENE_RETURN_IF_ERROR(source.VerifyChecksums([&](int64_t done_tokens) {
    compared = report.tokens;
    if (progress) progress(done_tokens, 2 * report.tokens);
  }));
  CONVENE_RETURN_IF_ERROR(
      ForEachBlock(source, 0, report.tokens,
                   [&](int64_t first, absl::Span<int32_t> ids,
                       absl::Span<const uint8_t> counted) -> absl::Status {
                     CONVENE_RETURN_IF_ERROR(Look(source, first, ids, counted, &report));
                     const int64_t looked_at = first + static_cast<int64_t>(ids.size());
                     if (progress) progress(compared + looked_at, compared + report.tokens);
                     return absl::OkStatus();
                   }));
  return report;
}

}  // namespace convene::worker

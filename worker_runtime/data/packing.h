// PURE. Whole documents in rows of fixed length, for instruction data: no document is spread over
// two rows, and few tokens of a row are padding.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace convene::worker {

struct PackingOptions {
  // Of a document that is longer than a row: true leaves it out, false keeps its first tokens.
  bool drop_too_long = false;
};

struct PackingCounts {
  int64_t documents = 0;  // all that were looked at
  int64_t rows = 0;
  int64_t tokens = 0;     // in the rows
  int64_t cut = 0;        // documents that lost their end
  int64_t dropped = 0;    // too long, left out
  int64_t too_short = 0;  // fewer than two tokens: nothing to predict; left out
  // Of pairs of answers: both have the same tokens, or one has no target that counts within its
  // half of a row; left out.
  int64_t idle = 0;
  int64_t lost_tokens = 0;  // of all that were cut or left out; 0 for pairs

  PackingCounts& operator+=(const PackingCounts& other);
};

// The rows and their documents. 4 bytes a document and 4 a row; 12 a document while it is made.
class Packing {
 public:
  // Best fit decreasing (Johnson 1973; at most 11/9 of the fewest rows, and for many short
  // documents nearly none too many): the longest first, each into the row with the least room that
  // still holds it, the row that was last touched among equal ones. `length`(i) is the number of
  // tokens of document i in [0, document_count), the same whenever it is asked. A pure function of
  // its arguments. InvalidArgument: more than 2^32 - 2 documents. REQUIRES: row_tokens >= 1.
  static absl::StatusOr<Packing> Pack(int row_tokens, int64_t document_count,
                                      absl::FunctionRef<int64_t(int64_t)> length,
                                      const PackingOptions& options);

  int64_t row_count() const { return static_cast<int64_t>(row_begin_.size()) - 1; }
  // Ascending numbers of documents. Each takes min(its length, row_tokens) tokens of the row.
  absl::Span<const uint32_t> Row(int64_t row) const {
    return absl::MakeConstSpan(documents_)
        .subspan(row_begin_[row], row_begin_[row + 1] - row_begin_[row]);
  }
  const PackingCounts& counts() const { return counts_; }

 private:
  Packing() = default;

  std::vector<uint32_t> documents_;  // row by row
  std::vector<uint32_t> row_begin_;  // in documents_, and the end
  PackingCounts counts_;
};

}  // namespace convene::worker

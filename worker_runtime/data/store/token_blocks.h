// Goes through a source: its tokens a block at a time, so that a file of any size takes little
// memory, and the ends of its documents.
#pragma once

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "worker_runtime/data/store/token_source.h"

namespace convene::worker {

// `ids` are the tokens from `first` on; `counted` is empty (all count), or has a 0 or 1 for each.
// The ids may be changed: they are a copy.
using UseTokens = absl::FunctionRef<absl::Status(int64_t first, absl::Span<int32_t> ids,
                                                 absl::Span<const uint8_t> counted)>;

// Calls `use` with the tokens of [begin, end) in order. Ends with its first error.
absl::Status ForEachBlock(const TokenSource& source, int64_t begin, int64_t end, UseTokens use);

// DataLoss, without the path: a document ends before it begins, or the last one not where the
// tokens end.
absl::Status CheckDocumentEnds(const TokenSource& source);

}  // namespace convene::worker

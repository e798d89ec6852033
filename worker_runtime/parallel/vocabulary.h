// Embedding and cross-entropy with the vocabulary split over tensor-parallel ranks (Shoeybi et al.
// 2019, section 3): full logits are never gathered; the loss costs three all-reduces of one or two
// numbers a token.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "worker_runtime/comm/collective.h"
#include "worker_runtime/device/dtype.h"
#include "worker_runtime/device/stream.h"
#include "worker_runtime/device/workspace.h"
#include "worker_runtime/parallel/chunked_rows.h"

namespace convene::worker {

// The slice [begin, end) of the vocabulary on this rank.
struct VocabularySlice {
  int begin = 0;
  int end = 0;
  int size() const { return end - begin; }
};

VocabularySlice SliceVocabulary(int vocabulary_size, int tp_size, int tp_rank);

// A table whose rows are split over the ranks, and the numbers of the rows that are wanted.
template <typename T>
struct SplitTable {
  VocabularySlice slice;
  const int32_t* numbers = nullptr;  // (rows)
  const T* table = nullptr;          // (slice.size(), hidden)
};

// y (all rows, hidden) = ResidualRows::Sum of the ranks' parts, each the sum over the tables. T:
// float or BFloat16. Errors: the collective's.
template <typename T>
absl::Status VocabularyParallelEmbedding(absl::Span<const SplitTable<T>> tables, int rows,
                                         int hidden, T* y, const ChunkedRows& residual,
                                         Stream& stream);

struct CrossEntropyBuffers {
  float* slice_max = nullptr;  // (rows)
  float* row_max = nullptr;    // (rows)
  float* sums = nullptr;       // (rows, 2)
  Workspace workspace;         // CrossEntropyWorkspaceBytes
};

// Adds the summed loss in nats over the rows whose target is not negative (the same on all ranks)
// to *loss_sum. When gradient_scale is not null, turns `logits` (rows, slice.size()) into the
// loss's gradient times *gradient_scale. Both in the device's memory. Errors: the collective's.
template <typename T>
absl::Status VocabularyParallelCrossEntropy(const VocabularySlice& slice, int rows,
                                            const int32_t* targets, const float* gradient_scale,
                                            const CrossEntropyBuffers& buffers, double* loss_sum,
                                            T* logits, Collective& tp, Stream& stream);

}  // namespace convene::worker

// Embedding and cross-entropy with the vocabulary split over tensor-parallel ranks (Shoeybi et al.
// 2019, section 3): full logits are never gathered; the loss costs three all-reduces of one or two
// numbers a token.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker_runtime/comm/collective.h"
#include "worker_runtime/device/stream.h"

namespace convene::worker {

// The slice [begin, end) of the vocabulary on this rank.
struct VocabularySlice {
  int begin = 0;
  int end = 0;
  int size() const { return end - begin; }
};

VocabularySlice SliceVocabulary(int vocabulary_size, int tp_size, int tp_rank);

// y (rows, hidden), the same on all ranks. Errors: the collective's.
absl::Status VocabularyParallelEmbedding(const VocabularySlice& slice, int rows, int hidden,
                                         const int32_t* tokens, const float* table, float* y,
                                         Collective& tp, Stream& stream);

struct CrossEntropyBuffers {
  float* row_max = nullptr;  // (rows)
  float* sums = nullptr;     // (rows, 2)
};

// Returns the summed loss in nats over the rows whose target is not negative (the same on all
// ranks), and turns `logits` (rows, slice.size()) into its gradient times gradient_scale.
absl::StatusOr<double> VocabularyParallelCrossEntropy(const VocabularySlice& slice, int rows,
                                                      const int32_t* targets, float gradient_scale,
                                                      const CrossEntropyBuffers& buffers,
                                                      float* logits, Collective& tp,
                                                      Stream& stream);

}  // namespace convene::worker

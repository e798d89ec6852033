#include "worker_runtime/parallel/vocabulary.h"

#include "absl/types/span.h"
#include "tools/base/check.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/ops/cross_entropy.h"
#include "worker_runtime/ops/embedding.h"

namespace convene::worker {

VocabularySlice SliceVocabulary(int vocabulary_size, int tp_size, int tp_rank) {
  CONVENE_CHECK(vocabulary_size % tp_size == 0);
  const int size = vocabulary_size / tp_size;
  return {.begin = tp_rank * size, .end = (tp_rank + 1) * size};
}

absl::Status VocabularyParallelEmbedding(const VocabularySlice& slice, int rows, int hidden,
                                         const int32_t* tokens, const float* table, float* y,
                                         Collective& tp, Stream& stream) {
  EmbeddingForward(rows, hidden, slice.begin, slice.end, tokens, table, y, stream);
  return tp.AllReduce(absl::MakeSpan(y, static_cast<size_t>(rows) * hidden), ReduceOp::kSum,
                      stream);
}

absl::StatusOr<double> VocabularyParallelCrossEntropy(const VocabularySlice& slice, int rows,
                                                      const int32_t* targets, float gradient_scale,
                                                      const CrossEntropyBuffers& buffers,
                                                      float* logits, Collective& tp,
                                                      Stream& stream) {
  const size_t count = rows;
  CrossEntropyRowMax(rows, slice.size(), logits, buffers.row_max, stream);
  CONVENE_RETURN_IF_ERROR(
      tp.AllReduce(absl::MakeSpan(buffers.row_max, count), ReduceOp::kMax, stream));
  CrossEntropyExpSums(rows, slice.begin, slice.end, targets, buffers.row_max, logits, buffers.sums,
                      stream);
  CONVENE_RETURN_IF_ERROR(
      tp.AllReduce(absl::MakeSpan(buffers.sums, 2 * count), ReduceOp::kSum, stream));
  return CrossEntropyLossAndGradient(rows, slice.begin, slice.end, targets, buffers.sums,
                                     gradient_scale, logits, stream);
}

}  // namespace convene::worker

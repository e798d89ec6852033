#include "worker_runtime/parallel/vocabulary.h"

#include "tools/base/check.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/ops/cross_entropy.h"
#include "worker_runtime/ops/elementwise.h"
#include "worker_runtime/ops/embedding.h"
#include "worker_runtime/ops/instantiate.h"

namespace convene::worker {

VocabularySlice SliceVocabulary(int vocabulary_size, int tp_size, int tp_rank) {
  CONVENE_CHECK(vocabulary_size % tp_size == 0);
  const int size = vocabulary_size / tp_size;
  return {.begin = tp_rank * size, .end = (tp_rank + 1) * size};
}

template <typename T>
absl::Status VocabularyParallelEmbedding(absl::Span<const SplitTable<T>> tables, int rows,
                                         int hidden, T* y, const ChunkedRows& residual,
                                         Stream& stream) {
  bool adds = false;
  for (const auto& [slice, numbers, table] : tables) {
    EmbeddingForward(rows, hidden, slice.begin, slice.end, numbers, table, adds, y, stream);
    adds = true;
  }
  return residual.Sum(y, stream);
}

template <typename T>
absl::Status VocabularyParallelCrossEntropy(const VocabularySlice& slice, int rows,
                                            const int32_t* targets, const float* gradient_scale,
                                            const CrossEntropyBuffers& buffers, double* loss_sum,
                                            T* logits, Collective& tp, Stream& stream) {
  const size_t count = rows;
  const bool at_once = tp.size() == 1 && gradient_scale != nullptr;
  if (at_once) {
    CrossEntropyAtOnce(rows, slice.begin, slice.end, targets, gradient_scale, buffers.row_max,
                       buffers.sums, logits, stream);
  } else {
    CrossEntropyStatistics(rows, slice.begin, slice.end, targets, logits, buffers.row_max,
                           buffers.sums, stream);
  }
  if (tp.size() > 1) {
    Copy(rows, buffers.row_max, buffers.slice_max, stream);
    CONVENE_RETURN_IF_ERROR(
        tp.AllReduce(absl::MakeSpan(buffers.row_max, count), ReduceOp::kMax, stream));
    CrossEntropyRescale(rows, buffers.slice_max, buffers.row_max, buffers.sums, stream);
    CONVENE_RETURN_IF_ERROR(
        tp.AllReduce(absl::MakeSpan(buffers.sums, 2 * count), ReduceOp::kSum, stream));
  }
  CrossEntropyLoss(rows, targets, buffers.row_max, buffers.sums, loss_sum, buffers.workspace,
                   stream);
  if (gradient_scale != nullptr && !at_once) {
    CrossEntropyGradient(rows, slice.begin, slice.end, targets, buffers.row_max, buffers.sums,
                         gradient_scale, logits, stream);
  }
  return absl::OkStatus();
}

CONVENE_INSTANTIATE(VocabularyParallelEmbedding);
CONVENE_INSTANTIATE(VocabularyParallelCrossEntropy);

}  // namespace convene::worker

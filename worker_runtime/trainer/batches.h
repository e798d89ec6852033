// The tokens of each step on one data-parallel rank, in buffers that are filled again and again.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "worker_runtime/data/dataset.h"
#include "worker_runtime/data/sample_order.h"
#include "worker_runtime/trainer/token_batch.h"

namespace convene::worker {

// Not thread-safe. The returned batches point into this object and last until its next call.
class BatchLoader {
 public:
  // `dataset` is borrowed. With `end_of_document` its rows are packed: the batches say where
  // documents begin (data/documents.h). A row that does not count is one document.
  BatchLoader(const Dataset& dataset, int64_t seed, const BatchCut& cut, int dp_rank,
              std::optional<int32_t> end_of_document);

  int64_t microbatches() const { return microbatches_; }

  // The global batch that begins at `first_sample` of the sample order.
  TokenBatch Training(int64_t first_sample);

  // Held-out samples [first, first + the global batch size), those at and after `end` as rows that
  // do not count. The gradient scale is 0: validation has no gradient.
  TokenBatch Validation(int64_t first, int64_t end);

 private:
  const int32_t* FindAllDocuments();

  const Dataset& dataset_;
  const int64_t seed_;
  const BatchCut cut_;
  const int dp_rank_;
  const std::optional<int32_t> end_of_document_;
  const int64_t microbatches_;
  std::vector<int64_t> positions_;  // (microbatches, rows)
  std::vector<int32_t> inputs_;     // (microbatches, rows, sequence_length)
  std::vector<int32_t> targets_;
  std::vector<int32_t> document_begin_;  // the same shape, or empty
};

}  // namespace convene::worker

// The tokens of each step on one data-parallel rank, in buffers that are filled again and again.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker_runtime/data/dataset.h"
#include "worker_runtime/data/sample_order.h"
#include "worker_runtime/trainer/token_batch.h"

namespace convene::worker {

// Not thread-safe. The returned batches point into this object and last until its next call.
// Errors: Dataset::Fill's.
class BatchLoader {
 public:
  struct Options {
    int64_t seed = 0;  // of the sample order
    BatchCut cut;
    int dp_rank = 0;
    // The batches say where documents begin: as the data packed them, where its rows know their
    // documents; else behind each `end_of_document` (data/documents.h). A row of padding is one
    // document.
    bool packed_documents = false;
    int32_t end_of_document = 0;
  };

  // `dataset` is borrowed.
  BatchLoader(const Dataset& dataset, const Options& options);

  int64_t microbatches() const { return microbatches_; }

  // The samples [first, first + samples) of the sample order. Where they are fewer than the cut's
  // global batch, they have fewer micro batches.
  absl::StatusOr<TokenBatch> Training(int64_t first, int64_t samples);

  // Held-out samples [first, first + the global batch size), those at and after `end` as rows that
  // do not count.
  absl::StatusOr<TokenBatch> Validation(int64_t first, int64_t end);

  // The rows with the numbers [first, first + the global batch size) (Dataset::RowPlaces), those at
  // and after the last as rows that do not count; without references.
  absl::StatusOr<TokenBatch> Rows(int64_t first);

  // TokenBatch::references of each row, by its number (Dataset::RowNumber). Borrowed.
  void SetReferences(absl::Span<const double> references) { all_references_ = references; }
  const Dataset& dataset() const { return dataset_; }
  int64_t global_batch_size() const { return options_.cut.global_batch_size; }
  // This rank's rows of the batch that was made last: their positions, indices or numbers.
  absl::Span<const int64_t> positions() const { return positions_; }

  // Dataset::ValidationTargetBytes of the first `samples` held-out samples.
  std::optional<int64_t> ValidationTargetBytes(int64_t samples) const;

 private:
  // This rank's positions of the step that begins at `first`, those at and after `end` as padding.
  void CutPositions(const BatchCut& cut, int64_t first, int64_t end);
  absl::Status Fill(absl::Span<const Dataset::Place> places);
  void FillDocuments(absl::Span<const Dataset::Place> places);
  TokenBatch Batch(int64_t counted_targets) const;

  const Dataset& dataset_;
  const Options options_;
  const int64_t microbatches_;
  std::vector<int64_t> positions_;  // (microbatches, rows), of the batch that is made
  std::vector<int32_t> inputs_;     // (microbatches, rows, sequence_length)
  std::vector<int32_t> targets_;
  std::vector<int32_t> document_begin_;  // the same shape, or empty
  absl::Span<const double> all_references_;
  std::vector<double> references_;  // (microbatches, rows), or empty
};

}  // namespace convene::worker

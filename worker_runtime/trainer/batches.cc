#include "worker_runtime/trainer/batches.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "tools/base/status_macros.h"
#include "worker_runtime/data/documents.h"

namespace convene::worker {
namespace {

std::vector<int64_t> Range(int64_t first, int64_t end) {
  std::vector<int64_t> range(end - first);
  std::iota(range.begin(), range.end(), first);
  return range;
}

}  // namespace

BatchLoader::BatchLoader(const Dataset& dataset, const Options& options)
    : dataset_(dataset),
      options_(options),
      microbatches_(MicrobatchCount(options.cut)),
      inputs_(microbatches_ * options.cut.micro_batch_size * dataset.sequence_length()),
      targets_(inputs_.size()),
      document_begin_(options.packed_documents ? inputs_.size() : 0) {}

void BatchLoader::CutPositions(const BatchCut& cut, int64_t first, int64_t end) {
  positions_.clear();
  for (int64_t microbatch = 0; microbatch < MicrobatchCount(cut); ++microbatch) {
    for (int row = 0; row < cut.micro_batch_size; ++row) {
      const int64_t position = SamplePosition(first, cut, options_.dp_rank, microbatch, row);
      positions_.push_back(position < end ? position : kNoSample);
    }
  }
}

absl::Status BatchLoader::Fill(absl::Span<const Dataset::Place> places) {
  CONVENE_RETURN_IF_ERROR(dataset_.Fill(places, inputs_.data(), targets_.data()));
  if (options_.packed_documents) FillDocuments(places);
  references_.clear();
  for (const Dataset::Place& place : places) {
    if (all_references_.empty()) break;
    references_.push_back(place.row == kNoSample ? std::numeric_limits<double>::quiet_NaN()
                                                 : all_references_[dataset_.RowNumber(place)]);
  }
  return absl::OkStatus();
}

void BatchLoader::FillDocuments(absl::Span<const Dataset::Place> places) {
  int32_t* begin = document_begin_.data();
  if (dataset_.has_documents()) return dataset_.FillDocuments(places, begin);
  const int length = dataset_.sequence_length();
  const int32_t* tokens = inputs_.data();
  for (const int64_t position : positions_) {
    if (position == kNoSample) {
      std::fill_n(begin, length, 0);
    } else {
      FindDocuments(length, tokens, options_.end_of_document, begin);
    }
    begin += length;
    tokens += length;
  }
}

TokenBatch BatchLoader::Batch(int64_t counted_targets) const {
  return {.inputs = inputs_.data(),
          .targets = targets_.data(),
          .counted_targets = counted_targets,
          .document_begin = options_.packed_documents ? document_begin_.data() : nullptr,
          .samples = positions_.data(),
          .references = references_.empty() ? nullptr : references_.data()};
}

absl::StatusOr<TokenBatch> BatchLoader::Training(int64_t first, int64_t samples) {
  BatchCut cut = options_.cut;
  cut.global_batch_size = samples;
  const int64_t end = first + samples;
  CutPositions(cut, first, end);
  const auto places = [this](absl::Span<const int64_t> positions) {
    return dataset_.TrainingPlaces(options_.seed, positions);
  };
  CONVENE_RETURN_IF_ERROR(Fill(places(positions_)));
  TokenBatch batch = Batch(dataset_.CountedTargets(places(Range(first, end))));
  batch.microbatches = static_cast<int>(MicrobatchCount(cut));
  return batch;
}

absl::StatusOr<TokenBatch> BatchLoader::Validation(int64_t first, int64_t end) {
  end = std::min(end, first + options_.cut.global_batch_size);
  CutPositions(options_.cut, first, end);
  CONVENE_RETURN_IF_ERROR(Fill(dataset_.ValidationPlaces(positions_)));
  return Batch(dataset_.CountedTargets(dataset_.ValidationPlaces(Range(first, end))));
}

absl::StatusOr<TokenBatch> BatchLoader::Rows(int64_t first) {
  const int64_t end = std::min(dataset_.row_count(), first + options_.cut.global_batch_size);
  CutPositions(options_.cut, first, end);
  CONVENE_RETURN_IF_ERROR(Fill(dataset_.RowPlaces(positions_)));
  TokenBatch batch = Batch(end - first);
  batch.references = nullptr;
  return batch;
}

std::optional<int64_t> BatchLoader::ValidationTargetBytes(int64_t samples) const {
  return dataset_.ValidationTargetBytes(Range(0, samples));
}

}  // namespace convene::worker

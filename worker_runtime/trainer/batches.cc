#include "worker_runtime/trainer/batches.h"

#include <algorithm>

#include "tools/base/check.h"
#include "worker_runtime/data/documents.h"

namespace convene::worker {

BatchLoader::BatchLoader(const Dataset& dataset, int64_t seed, const BatchCut& cut, int dp_rank,
                         std::optional<int32_t> end_of_document)
    : dataset_(dataset),
      seed_(seed),
      cut_(cut),
      dp_rank_(dp_rank),
      end_of_document_(end_of_document),
      microbatches_(MicrobatchCount(cut)),
      positions_(microbatches_ * cut.micro_batch_size),
      inputs_(positions_.size() * dataset.sequence_length()),
      targets_(inputs_.size()),
      document_begin_(end_of_document.has_value() ? inputs_.size() : 0) {}

const int32_t* BatchLoader::FindAllDocuments() {
  if (!end_of_document_.has_value()) return nullptr;
  const int length = dataset_.sequence_length();
  int32_t* begin = document_begin_.data();
  const int32_t* tokens = inputs_.data();
  for (const int64_t position : positions_) {
    if (position == kNoSample) {
      std::fill_n(begin, length, 0);
    } else {
      FindDocuments(length, tokens, *end_of_document_, begin);
    }
    begin += length;
    tokens += length;
  }
  return document_begin_.data();
}

TokenBatch BatchLoader::Training(int64_t first_sample) {
  size_t i = 0;
  for (int64_t microbatch = 0; microbatch < microbatches_; ++microbatch) {
    for (int row = 0; row < cut_.micro_batch_size; ++row) {
      positions_[i++] = SamplePosition(first_sample, cut_, dp_rank_, microbatch, row);
    }
  }
  CONVENE_CHECK(dataset_.FillMicrobatch(seed_, positions_, inputs_.data(), targets_.data()).ok());
  const double tokens = static_cast<double>(cut_.global_batch_size) * dataset_.sequence_length();
  return {inputs_.data(), targets_.data(), static_cast<float>(1.0 / tokens), FindAllDocuments()};
}

TokenBatch BatchLoader::Validation(int64_t first, int64_t end) {
  size_t i = 0;
  for (int64_t microbatch = 0; microbatch < microbatches_; ++microbatch) {
    for (int row = 0; row < cut_.micro_batch_size; ++row) {
      const int64_t index = SamplePosition(first, cut_, dp_rank_, microbatch, row);
      positions_[i++] = index < end ? index : kNoSample;
    }
  }
  CONVENE_CHECK(dataset_.FillValidation(positions_, inputs_.data(), targets_.data()).ok());
  return {inputs_.data(), targets_.data(), 0.0f, FindAllDocuments()};
}

}  // namespace convene::worker

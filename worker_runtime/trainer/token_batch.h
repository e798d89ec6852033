// The engine's input for one step.
#pragma once

#include <cstdint>

namespace convene::worker {

// The tokens of one step on this data-parallel rank: (microbatches, micro_batch_size,
// sequence_length) each, whole rows: the engine takes a context-parallel rank's tokens of them.
// Borrowed, in host memory.
struct TokenBatch {
  const int32_t* inputs = nullptr;
  const int32_t* targets = nullptr;  // negative: does not count in the loss
  // Targets that count, of the whole global batch: the same number on every rank, also on one whose
  // own targets do not count at all. The step's loss is the sum over these targets, divided by it.
  // Of pairs of answers: the pairs that count.
  int64_t counted_targets = 0;
  // For packed rows Documents::begin (ops/documents.h) of each microbatch, else null.
  const int32_t* document_begin = nullptr;
  // Of a training step; 0: EngineOptions::microbatches.
  int microbatches = 0;
  // (microbatches, micro_batch_size): each row's number among all samples of the run; of a row that
  // does not count any number. Of models whose adapters have dropout, else it may be null.
  const int64_t* samples = nullptr;
  // (microbatches, micro_batch_size), of pairs of answers: PreferenceLoss's. Null: not known yet.
  const double* references = nullptr;
};

}  // namespace convene::worker

// The engine's input for one step.
#pragma once

#include <cstdint>

namespace convene::worker {

// The tokens of one step on this data-parallel rank: (microbatches, micro_batch_size,
// sequence_length) each, whole rows: the engine takes a context-parallel rank's tokens of them.
// Borrowed, in host memory.
struct TokenBatch {
  const int32_t* inputs = nullptr;
  const int32_t* targets = nullptr;  // negative: does not count
  float gradient_scale = 0;          // 1 / counted tokens of the whole global batch
  // For packed rows Documents::begin (ops/documents.h) of each microbatch, else null.
  const int32_t* document_begin = nullptr;
};

}  // namespace convene::worker

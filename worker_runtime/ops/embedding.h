// Token embedding over a slice of the vocabulary.
#pragma once

#include <cstdint>

#include "worker_runtime/device/stream.h"

namespace convene::worker {

// tokens: (rows); table: (vocabulary_end - vocabulary_begin, columns), the rows [begin, end) of the
// whole table; y: (rows, columns): the token's row, or zeros when it lies outside the slice
// (another tensor-parallel rank holds it).
void EmbeddingForward(int rows, int columns, int vocabulary_begin, int vocabulary_end,
                      const int32_t* tokens, const float* table, float* y, Stream& stream);

// dtable is added to, row by row in the order of `tokens`: deterministic.
void EmbeddingBackward(int rows, int columns, int vocabulary_begin, int vocabulary_end,
                       const int32_t* tokens, const float* dy, float* dtable, Stream& stream);

}  // namespace convene::worker

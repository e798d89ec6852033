// Token embedding over a slice of the vocabulary. T: float or BFloat16.
#pragma once

#include <cstddef>
#include <cstdint>

#include "worker_runtime/device/dtype.h"
#include "worker_runtime/device/stream.h"
#include "worker_runtime/device/workspace.h"

namespace convene::worker {

// tokens: (rows); table: (vocabulary_end - vocabulary_begin, columns), the rows [begin, end) of the
// whole table; y: (rows, columns): the token's row, or zeros when it lies outside the slice
// (another tensor-parallel rank holds it); added to y where `adds`.
template <typename T>
void EmbeddingForward(int rows, int columns, int vocabulary_begin, int vocabulary_end,
                      const int32_t* tokens, const T* table, bool adds, T* y, Stream& stream);

// Scratch of EmbeddingBackward.
size_t EmbeddingWorkspaceBytes(int rows, int columns, DeviceKind device);

// dtable is added to, for each of its rows in an order that the tokens alone decide: the same bits
// for the same input.
template <typename T>
void EmbeddingBackward(int rows, int columns, int vocabulary_begin, int vocabulary_end,
                       const int32_t* tokens, const T* dy, float* dtable,
                       const Workspace& workspace, Stream& stream);

}  // namespace convene::worker

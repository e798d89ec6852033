// PURE. The memory in which a rank changes the matrices of a store as wholes (whole_matrices.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "worker_runtime/device/dtype.h"

namespace convene::worker {

// Of all matrices of a store, in elements. All 0: there is none.
struct MatrixSizes {
  int64_t largest = 0;       // the largest matrix, before any cut
  int64_t shorter_side = 0;  // the longest of their shorter sides
  int64_t bucket = 0;        // the largest bucket that has a matrix
};

struct MatrixMemory {
  int64_t slot = 0;  // elements of a place for one matrix, a multiple of kParameterAlignment
  // Bytes.
  size_t bucket = 0;
  size_t whole = 0;  // a slot for each tensor-parallel rank
  size_t square = 0;
  size_t product = 0;

  size_t Total() const { return bucket + whole + square + product; }
};

// `dtype`: of the parameters.
MatrixMemory MatrixMemoryOf(const MatrixSizes& sizes, int tp, DType dtype);

}  // namespace convene::worker

// PURE. Plans the copies from the pieces that were written to the pieces that are wanted.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "worker_runtime/checkpoint/box.h"
#include "worker_runtime/device/elements.h"

namespace convene::worker {

// Copies one box: element (i, j, ...) of `extent` goes from source_offset + i * source_stride[0] +
// j * source_stride[1] + ... of chunk `available_index` to target_offset + i * target_stride[0] +
// ... of piece `wanted_index`. Offsets and strides count elements from the beginning of the chunk's
// and the piece's own data. Axes that are contiguous on both sides have been merged; the last axis
// has stride 1 on both.
struct BoxCopy {
  int available_index = 0;
  int wanted_index = 0;
  int axes = 0;
  std::array<int64_t, kMaxTensorAxes> extent = {};
  std::array<int64_t, kMaxTensorAxes> source_stride = {};
  std::array<int64_t, kMaxTensorAxes> target_stride = {};
  int64_t source_offset = 0;
  int64_t target_offset = 0;
};

// The copies that fill every element of every wanted piece exactly once, ordered by
// available_index, then source_offset. Wanted pieces with flat_count 0 need nothing; so do tensors
// that nobody wants. FailedPrecondition, naming the tensor: the tensor is not available, or has
// another shape; two available pieces hold the same wanted element (names the box); an element is
// in no available piece (names the first such box). REQUIRES: every piece with flat_count > 0
// passes ValidatePiece.
absl::StatusOr<std::vector<BoxCopy>> PlanReshard(const std::vector<TensorPiece>& wanted,
                                                 const std::vector<TensorPiece>& available);

// OK when the pieces hold every element of every tensor they name exactly once; otherwise
// PlanReshard's error. REQUIRES: as PlanReshard.
absl::Status CheckTiling(const std::vector<TensorPiece>& pieces);

// Does the copy. `source` and `target` are the data of the chunk and of the piece that it names.
// Between fp32 and bf16 it converts: fp32 is rounded to nearest, ties to even. REQUIRES: these
// types alone.
void CopyBox(const BoxCopy& copy, const ConstElements& source, const Elements& target);

}  // namespace convene::worker

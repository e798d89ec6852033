// PURE. Boxes of global tensors, and the flat pieces of them that a rank holds.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace convene::worker {

// Tensors have 1 to this many axes; a scalar is a tensor of shape {1}.
constexpr int kMaxTensorAxes = 4;

// A box inside a global tensor, row-major: [offset[d], offset[d] + extent[d]) in each axis d.
struct Box {
  std::vector<int64_t> offset;
  std::vector<int64_t> extent;
  int64_t elements() const;
  friend bool operator==(const Box&, const Box&) = default;
};

// The part of one global tensor that a rank holds: `flat_count` elements, from `flat_begin`, of the
// row-major flattening of `local_box`. A ZeRO shard cuts a tensor anywhere; a whole tensor-parallel
// slice has flat_begin 0 and flat_count local_box.elements().
struct TensorPiece {
  std::string
      name;  // "layers.3.attention.qkv.weight", "optimizer.first_moment/layers.3...": global
  std::vector<int64_t> global_shape;
  Box local_box;
  int64_t flat_begin = 0;
  int64_t flat_count = 0;
  friend bool operator==(const TensorPiece&, const TensorPiece&) = default;
};

// InvalidArgument, naming the tensor, unless: the name is not empty, the shape has 1 to
// kMaxTensorAxes positive sizes whose product fits int64_t, the box lies inside the shape and is
// not empty, and the flat range lies inside the box.
absl::Status ValidatePiece(const TensorPiece& piece);

// The flat range as disjoint boxes in global coordinates, in row-major order of the local box: at
// most 2 * axes - 1 of them. Empty when count is 0. REQUIRES: 0 <= begin, 0 <= count, begin + count
// <= local_box.elements().
std::vector<Box> BoxesOfFlatRange(const Box& local_box, int64_t begin, int64_t count);

// REQUIRES (these two): as many axes in `a` as in `b`.
std::optional<Box> Intersect(const Box& a, const Box& b);
// `a` without `b` as disjoint boxes, the one with the lowest coordinates first.
std::vector<Box> Subtract(const Box& a, const Box& b);

// Elements between neighbours along each axis of a row-major array of this shape; the last is 1.
std::vector<int64_t> RowMajorStrides(const std::vector<int64_t>& shape);

// "[0:4, 16:32]".
std::string ToString(const Box& box);

}  // namespace convene::worker

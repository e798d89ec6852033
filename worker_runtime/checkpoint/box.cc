#include "worker_runtime/checkpoint/box.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tools/base/check.h"

namespace convene::worker {
namespace {

absl::Status Wrong(const TensorPiece& piece, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat("tensor '", piece.name, "': ", what));
}

// Appends the boxes of [begin, end) of the part of `box` that `prefix` leaves: the axes before
// `axis` are fixed to one row each in `prefix`.
void AppendBoxes(const Box& box, size_t axis, int64_t begin, int64_t end, Box* prefix,
                 std::vector<Box>* boxes) {
  if (begin == end) return;
  int64_t row_elements = 1;
  for (size_t d = axis + 1; d < box.extent.size(); ++d) row_elements *= box.extent[d];
  const auto append_rows = [&](int64_t first, int64_t count) {
    if (count == 0) return;
    Box rows = box;
    std::copy_n(prefix->offset.begin(), axis, rows.offset.begin());
    std::copy_n(prefix->extent.begin(), axis, rows.extent.begin());
    rows.offset[axis] += first;
    rows.extent[axis] = count;
    boxes->push_back(std::move(rows));
  };
  const auto append_part_of_row = [&](int64_t row, int64_t from, int64_t to) {
    prefix->offset[axis] = box.offset[axis] + row;
    prefix->extent[axis] = 1;
    AppendBoxes(box, axis + 1, from, to, prefix, boxes);
  };
  const int64_t first_row = begin / row_elements;
  const int64_t last_row = (end - 1) / row_elements;
  const int64_t head = begin % row_elements;
  const int64_t tail = (end - 1) % row_elements + 1;  // used elements of the last row
  const bool head_is_whole = head == 0;
  const bool tail_is_whole = tail == row_elements;
  if (first_row == last_row && !(head_is_whole && tail_is_whole)) {
    append_part_of_row(first_row, head, tail);
    return;
  }
  if (!head_is_whole) append_part_of_row(first_row, head, row_elements);
  const int64_t first_whole = first_row + (head_is_whole ? 0 : 1);
  const int64_t end_whole = last_row + (tail_is_whole ? 1 : 0);
  append_rows(first_whole, end_whole - first_whole);
  if (!tail_is_whole) append_part_of_row(last_row, 0, tail);
}

}  // namespace

int64_t Box::elements() const {
  int64_t product = 1;
  for (const int64_t size : extent) product *= size;
  return product;
}

absl::Status ValidatePiece(const TensorPiece& piece) {
  const size_t axes = piece.global_shape.size();
  if (piece.name.empty()) return absl::InvalidArgumentError("a tensor without a name");
  if (axes < 1 || axes > kMaxTensorAxes) {
    return Wrong(piece, absl::StrCat(axes, " axes; 1 to ", kMaxTensorAxes, " are supported"));
  }
  const Box& box = piece.local_box;
  if (box.offset.size() != axes || box.extent.size() != axes) {
    return Wrong(piece, absl::StrCat("its box has ", box.offset.size(), " offsets and ",
                                     box.extent.size(), " extents, its shape ", axes, " axes"));
  }
  int64_t elements = 1;
  for (size_t d = 0; d < axes; ++d) {
    const int64_t size = piece.global_shape[d];
    if (size <= 0 || __builtin_mul_overflow(elements, size, &elements)) {
      return Wrong(
          piece, absl::StrCat("impossible shape [", absl::StrJoin(piece.global_shape, ", "), "]"));
    }
    if (box.offset[d] < 0 || box.extent[d] <= 0 || box.offset[d] > size ||
        box.extent[d] > size - box.offset[d]) {
      return Wrong(piece, absl::StrCat("box ", ToString(box), " is not inside the shape [",
                                       absl::StrJoin(piece.global_shape, ", "), "]"));
    }
  }
  if (piece.flat_begin < 0 || piece.flat_count < 0 || piece.flat_begin > box.elements() ||
      piece.flat_count > box.elements() - piece.flat_begin) {
    return Wrong(piece, absl::StrCat("flat range ", piece.flat_begin, " + ", piece.flat_count,
                                     " is not inside the ", box.elements(), " elements of box ",
                                     ToString(box)));
  }
  return absl::OkStatus();
}

std::vector<Box> BoxesOfFlatRange(const Box& local_box, int64_t begin, int64_t count) {
  CONVENE_CHECK(begin >= 0 && count >= 0 && begin + count <= local_box.elements());
  std::vector<Box> boxes;
  Box prefix = local_box;
  AppendBoxes(local_box, 0, begin, begin + count, &prefix, &boxes);
  return boxes;
}

std::optional<Box> Intersect(const Box& a, const Box& b) {
  Box common = a;
  for (size_t d = 0; d < a.offset.size(); ++d) {
    const int64_t begin = std::max(a.offset[d], b.offset[d]);
    const int64_t end = std::min(a.offset[d] + a.extent[d], b.offset[d] + b.extent[d]);
    if (begin >= end) return std::nullopt;
    common.offset[d] = begin;
    common.extent[d] = end - begin;
  }
  return common;
}

std::vector<Box> Subtract(const Box& a, const Box& b) {
  const std::optional<Box> common = Intersect(a, b);
  if (!common.has_value()) return {a};
  // Axis by axis: cut off what lies before and behind the common part, and go on with the slab
  // between.
  std::vector<Box> before, behind;
  Box slab = a;
  for (size_t d = 0; d < a.offset.size(); ++d) {
    const int64_t begin = common->offset[d];
    const int64_t end = begin + common->extent[d];
    Box cut = slab;
    cut.extent[d] = begin - slab.offset[d];
    if (cut.extent[d] > 0) before.push_back(cut);
    cut.offset[d] = end;
    cut.extent[d] = slab.offset[d] + slab.extent[d] - end;
    if (cut.extent[d] > 0) behind.push_back(cut);
    slab.offset[d] = begin;
    slab.extent[d] = end - begin;
  }
  before.insert(before.end(), behind.rbegin(), behind.rend());
  return before;
}

std::vector<int64_t> RowMajorStrides(const std::vector<int64_t>& shape) {
  std::vector<int64_t> strides(shape.size(), 1);
  for (size_t d = shape.size(); d-- > 1;) strides[d - 1] = strides[d] * shape[d];
  return strides;
}

std::string ToString(const Box& box) {
  std::string text = "[";
  for (size_t d = 0; d < box.offset.size(); ++d) {
    absl::StrAppend(&text, d == 0 ? "" : ", ", box.offset[d], ":", box.offset[d] + box.extent[d]);
  }
  return text + "]";
}

}  // namespace convene::worker

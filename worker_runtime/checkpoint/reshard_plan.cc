#include "worker_runtime/checkpoint/reshard_plan.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tools/base/status_macros.h"
#include "tools/base/text.h"

namespace convene::worker {
namespace {

// One box of one available piece.
struct AvailableBox {
  Box box;
  int index;
};

using BoxesByTensor = std::unordered_map<std::string, std::vector<AvailableBox>>;

absl::Status Refuse(const std::string& tensor, const std::string& what) {
  return absl::FailedPreconditionError(absl::StrCat("tensor '", tensor, "' ", what));
}

// Looks only at the wanted tensors: a rank wants few of thousands.
absl::StatusOr<BoxesByTensor> IndexAvailable(const std::vector<TensorPiece>& wanted,
                                             const std::vector<TensorPiece>& available) {
  BoxesByTensor boxes;
  std::unordered_map<std::string, const std::vector<int64_t>*> shapes;
  for (const TensorPiece& piece : wanted) {
    if (piece.flat_count == 0) continue;
    boxes[piece.name];
    shapes.emplace(piece.name, &piece.global_shape);
  }
  for (size_t i = 0; i < available.size(); ++i) {
    const TensorPiece& piece = available[i];
    const auto it = boxes.find(piece.name);
    if (it == boxes.end() || piece.flat_count == 0) continue;
    const std::vector<int64_t>& shape = *shapes.at(piece.name);
    if (piece.global_shape != shape) {
      return Refuse(piece.name,
                    absl::StrCat("has shape [", absl::StrJoin(piece.global_shape, ", "),
                                 "] where it was written, and [", absl::StrJoin(shape, ", "),
                                 "] where it is wanted: the model must have the same shape"));
    }
    for (Box& box : BoxesOfFlatRange(piece.local_box, piece.flat_begin, piece.flat_count)) {
      it->second.push_back({std::move(box), static_cast<int>(i)});
    }
  }
  return boxes;
}

absl::Status Absent(const std::string& tensor, const std::vector<TensorPiece>& available) {
  std::vector<std::string> names;
  for (const TensorPiece& piece : available) {
    if (names.empty() || names.back() != piece.name) names.push_back(piece.name);
  }
  const std::string closest = ClosestMatch(tensor, names);
  return Refuse(tensor, absl::StrCat("is in no chunk",
                                     closest.empty() ? "" : absl::StrCat("; '", closest, "' is")));
}

// `parts` lie inside one wanted box, sorted by offset. A part can overlap only later parts that
// begin before its end along axis 0.
absl::Status CheckDisjoint(const std::string& tensor, const std::vector<AvailableBox>& parts) {
  for (size_t i = 0; i < parts.size(); ++i) {
    const int64_t end = parts[i].box.offset[0] + parts[i].box.extent[0];
    for (size_t j = i + 1; j < parts.size() && parts[j].box.offset[0] < end; ++j) {
      const std::optional<Box> common = Intersect(parts[i].box, parts[j].box);
      if (!common.has_value()) continue;
      return Refuse(tensor, absl::StrCat("has box ", ToString(*common), " in two chunks, ",
                                         parts[i].index, " and ", parts[j].index));
    }
  }
  return absl::OkStatus();
}

absl::Status Uncovered(const std::string& tensor, const Box& wanted,
                       const std::vector<AvailableBox>& parts) {
  std::vector<Box> left = {wanted};
  for (const AvailableBox& part : parts) {
    std::vector<Box> still_left;
    for (const Box& box : left) {
      for (Box& rest : Subtract(box, part.box)) still_left.push_back(std::move(rest));
    }
    left = std::move(still_left);
  }
  const auto first = std::min_element(
      left.begin(), left.end(), [](const Box& a, const Box& b) { return a.offset < b.offset; });
  return Refuse(tensor, absl::StrCat("has box ", ToString(*first), " in no chunk"));
}

// Where the element at `corner` of the global tensor lies in the piece's own data.
int64_t DataOffset(const TensorPiece& piece, const std::vector<int64_t>& strides,
                   const std::vector<int64_t>& corner) {
  int64_t offset = -piece.flat_begin;
  for (size_t d = 0; d < corner.size(); ++d) {
    offset += (corner[d] - piece.local_box.offset[d]) * strides[d];
  }
  return offset;
}

BoxCopy MakeCopy(const TensorPiece& source, int source_index, const TensorPiece& target,
                 int target_index, const Box& box) {
  const std::vector<int64_t> source_strides = RowMajorStrides(source.local_box.extent);
  const std::vector<int64_t> target_strides = RowMajorStrides(target.local_box.extent);
  BoxCopy copy;
  copy.available_index = source_index;
  copy.wanted_index = target_index;
  copy.source_offset = DataOffset(source, source_strides, box.offset);
  copy.target_offset = DataOffset(target, target_strides, box.offset);
  for (size_t d = 0; d < box.extent.size(); ++d) {
    const int last = copy.axes - 1;
    const bool continues_last = last >= 0 &&
                                copy.source_stride[last] == box.extent[d] * source_strides[d] &&
                                copy.target_stride[last] == box.extent[d] * target_strides[d];
    const int axis = continues_last ? last : copy.axes++;
    copy.extent[axis] = (continues_last ? copy.extent[axis] : 1) * box.extent[d];
    copy.source_stride[axis] = source_strides[d];
    copy.target_stride[axis] = target_strides[d];
  }
  return copy;
}

// REQUIRES: as many elements in one as in the other.
void CopyElements(const ConstElements& source, const Elements& target) {
  if (source.dtype == target.dtype) {
    std::memcpy(target.data, source.data, source.size_bytes());
  } else if (target.dtype == DType::kBFloat16) {
    BFloat16* to = target.As<BFloat16>().data();
    for (const float value : source.As<float>()) *to++ = BFloat16(value);
  } else {
    float* to = target.As<float>().data();
    for (const BFloat16 value : source.As<BFloat16>()) *to++ = static_cast<float>(value);
  }
}

}  // namespace

absl::StatusOr<std::vector<BoxCopy>> PlanReshard(const std::vector<TensorPiece>& wanted,
                                                 const std::vector<TensorPiece>& available) {
  CONVENE_ASSIGN_OR_RETURN(const BoxesByTensor boxes, IndexAvailable(wanted, available));
  std::vector<BoxCopy> copies;
  for (size_t w = 0; w < wanted.size(); ++w) {
    const TensorPiece& piece = wanted[w];
    if (piece.flat_count == 0) continue;
    const std::vector<AvailableBox>& candidates = boxes.at(piece.name);
    if (candidates.empty()) return Absent(piece.name, available);
    for (const Box& box : BoxesOfFlatRange(piece.local_box, piece.flat_begin, piece.flat_count)) {
      std::vector<AvailableBox> parts;
      int64_t covered = 0;
      for (const AvailableBox& candidate : candidates) {
        std::optional<Box> common = Intersect(box, candidate.box);
        if (!common.has_value()) continue;
        covered += common->elements();
        copies.push_back(MakeCopy(available[candidate.index], candidate.index, piece,
                                  static_cast<int>(w), *common));
        parts.push_back({*std::move(common), candidate.index});
      }
      std::sort(parts.begin(), parts.end(), [](const AvailableBox& a, const AvailableBox& b) {
        return a.box.offset < b.box.offset;
      });
      CONVENE_RETURN_IF_ERROR(CheckDisjoint(piece.name, parts));
      if (covered != box.elements()) return Uncovered(piece.name, box, parts);
    }
  }
  std::sort(copies.begin(), copies.end(), [](const BoxCopy& a, const BoxCopy& b) {
    return std::pair(a.available_index, a.source_offset) <
           std::pair(b.available_index, b.source_offset);
  });
  return copies;
}

absl::Status CheckTiling(const std::vector<TensorPiece>& pieces) {
  std::unordered_set<std::string> seen;
  std::vector<TensorPiece> whole_tensors;
  for (const TensorPiece& piece : pieces) {
    if (piece.flat_count == 0 || !seen.insert(piece.name).second) continue;
    TensorPiece whole{piece.name, piece.global_shape, {}, 0, 0};
    whole.local_box = {std::vector<int64_t>(piece.global_shape.size(), 0), piece.global_shape};
    whole.flat_count = whole.local_box.elements();
    whole_tensors.push_back(std::move(whole));
  }
  return PlanReshard(whole_tensors, pieces).status();
}

void CopyBox(const BoxCopy& copy, const ConstElements& source, const Elements& target) {
  int64_t from = copy.source_offset, to = copy.target_offset;
  const int last = copy.axes - 1;
  std::array<int64_t, kMaxTensorAxes> at = {};
  while (true) {
    CopyElements(source.Slice(from, copy.extent[last]), target.Slice(to, copy.extent[last]));
    int axis = last - 1;
    for (; axis >= 0; --axis) {
      from += copy.source_stride[axis];
      to += copy.target_stride[axis];
      if (++at[axis] < copy.extent[axis]) break;
      from -= at[axis] * copy.source_stride[axis];
      to -= at[axis] * copy.target_stride[axis];
      at[axis] = 0;
    }
    if (axis < 0) return;
  }
}

}  // namespace convene::worker

// PURE. Where a rank's parameters lie in its flat buffer, and the buckets in which data-parallel
// ranks reduce and gather it.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "worker_runtime/model/parameters.h"
#include "worker_runtime/shard/buckets.h"

namespace convene::worker {

struct PlacedParameter : ParameterSlice {
  int64_t flat_offset = 0;  // first element in the rank's flat buffer
};

// Whole neighbouring units' tensors, which data-parallel ranks reduce and gather by one collective.
// Elements of the flat buffer, both divisible by dp * kParameterAlignment.
struct ParameterBucket {
  int64_t begin = 0;
  int64_t count = 0;

  int64_t end() const { return begin + count; }
};

struct Placement {
  // A tensor that units share stands here once.
  struct Tensor {
    int64_t begin = 0;
    int64_t count = 0;
    int bucket = 0;
    // The last of the units that have it: in a step its gradient comes first. (A tied head's comes
    // within the forward pass.)
    int last_unit = 0;
  };
  struct Unit {
    std::vector<int> tensors;  // into Placement::tensors, in the order of UnitSpec::tensors
    // Where the unit's split tensors lie; a tensor that it shares with an earlier unit lies in that
    // unit's bucket. Tensors that are the same on all tensor-parallel ranks lie in bucket 0.
    int bucket = 0;
  };

  std::vector<PlacedParameter> parameters;  // in flat order
  std::vector<Tensor> tensors;              // in flat order
  std::vector<Unit> units;
  std::vector<ParameterBucket> buckets;  // in flat order: one ends where the next begins
  // [0, same_on_tp_end) are all tensors that every tensor-parallel rank holds whole, side by side
  // and at the same places on each rank, so that one collective reaches them all.
  int64_t same_on_tp_end = 0;
  int64_t units_begin = 0;  // before it tensors of the first bucket, whatever their unit
  int on_both_ends = -1;    // the tensor that the first and the last stage share, or -1
  int64_t flat_count = 0;   // elements, padding included; divisible by dp * kParameterAlignment
};

// Places the tensors of a stage's units, in the order of the forward pass. Each bucket has at least
// `bucket_count_min` elements, but for the first one: it has the tensors that are the same on all
// tensor-parallel ranks, and the elements that are left. With kUnitBuckets the first bucket has
// only those tensors, and each unit's other tensors are a bucket of their own; a tensor that
// several units share lies in the bucket of the first of them.
Placement PlaceUnits(const std::vector<UnitSpec>& units, int dp, int64_t bucket_count_min);

// The first element and the end of a part of the flat buffer.
using FlatRange = std::pair<int64_t, int64_t>;

// Visits the ranges of a bucket that belong to no tensor, in flat order.
void ForPadding(const Placement& placement, int bucket,
                absl::FunctionRef<void(const FlatRange&)> visit);

// The range of tensors, side by side, whose gradients all come after the backward pass of `unit`.
// For an earlier unit it is the beginning of the same range, or empty. It begins at a multiple of
// kParameterAlignment.
FlatRange TensorsBefore(const Placement& placement, int unit);

// The elements of two places that hold each whole bucket but bucket 0 in turn: as few as it takes
// for the work on one bucket beside that on the next. The first has room for the largest one (often
// a table of tokens), the second for the smaller one of any two neighbours. One place where there
// is one such bucket.
std::vector<int64_t> SlotCounts(const Placement& placement);

}  // namespace convene::worker

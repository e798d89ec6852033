#include "worker_runtime/shard/placement.h"

#include <map>
#include <string>
#include <utility>

#include "tools/base/rounding.h"

namespace convene::worker {
namespace {

// Lays the tensors out in order.
class Placer {
 public:
  // `opens_bucket`: whether a unit begins a bucket, by its number. Bucket 0 begins with the buffer.
  Placer(const std::vector<UnitSpec>& units, int dp, std::vector<bool> opens_bucket)
      : units_(units),
        bucket_alignment_(kParameterAlignment * dp),
        opens_bucket_(std::move(opens_bucket)) {}

  // Call it once.
  Placement Place();
  // After Place(): where each unit's split tensors begin, and where the last ones end.
  const std::vector<int64_t>& borders() const { return borders_; }

 private:
  // Where a tensor lies: among those that are the same on every tensor-parallel rank, behind them
  // in the first bucket, or with its unit.
  enum class Region { kSameOnTp, kFirstBucket, kUnit };
  static Region RegionOf(const UnitTensor& tensor) {
    if (tensor.same_on_tp) return Region::kSameOnTp;
    return tensor.in_first_bucket ? Region::kFirstBucket : Region::kUnit;
  }
  void PlaceTensors(Region region, size_t unit);
  void Add(const UnitTensor& tensor);

  const std::vector<UnitSpec>& units_;
  const int64_t bucket_alignment_;
  const std::vector<bool> opens_bucket_;
  Placement placement_;
  std::map<std::string, int> by_name_;
  std::vector<int64_t> borders_;
  int64_t next_ = 0;
};

// The slices of a fused tensor follow each other without a gap.
void Placer::Add(const UnitTensor& tensor) {
  next_ = RoundUp(next_, kParameterAlignment);
  const int index = static_cast<int>(placement_.tensors.size());
  by_name_[tensor.name()] = index;
  if (tensor.on_both_ends) placement_.on_both_ends = index;
  placement_.tensors.push_back({.begin = next_,
                                .count = tensor.count(),
                                .bucket = static_cast<int>(placement_.buckets.size()) - 1});
  for (const ParameterSlice& slice : tensor.slices) {
    placement_.parameters.push_back({slice, next_});
    next_ += slice.count();
  }
}

void Placer::PlaceTensors(Region region, size_t unit) {
  for (size_t i = 0; i < units_[unit].tensors.size(); ++i) {
    const UnitTensor& tensor = units_[unit].tensors[i];
    if (RegionOf(tensor) != region) continue;
    if (by_name_.find(tensor.name()) == by_name_.end()) Add(tensor);
    const int index = by_name_[tensor.name()];
    placement_.units[unit].tensors[i] = index;
    placement_.tensors[index].last_unit = static_cast<int>(unit);
    if (region == Region::kUnit) placement_.units[unit].bucket = placement_.tensors[index].bucket;
  }
}

Placement Placer::Place() {
  for (const UnitSpec& unit : units_) {
    placement_.units.push_back({.tensors = std::vector<int>(unit.tensors.size())});
  }
  placement_.buckets.push_back({});
  for (size_t unit = 0; unit < units_.size(); ++unit) PlaceTensors(Region::kSameOnTp, unit);
  placement_.same_on_tp_end = next_;
  for (size_t unit = 0; unit < units_.size(); ++unit) PlaceTensors(Region::kFirstBucket, unit);
  placement_.units_begin = next_;
  for (size_t unit = 0; unit < units_.size(); ++unit) {
    if (opens_bucket_[unit]) {
      // An embedding alone has no norms, but no bucket is empty.
      next_ = RoundUp(std::max<int64_t>(next_, 1), bucket_alignment_);
      placement_.buckets.back().count = next_ - placement_.buckets.back().begin;
      placement_.buckets.push_back({.begin = next_});
    }
    borders_.push_back(next_);
    PlaceTensors(Region::kUnit, unit);
  }
  borders_.push_back(next_);
  placement_.flat_count = RoundUp(next_, bucket_alignment_);
  placement_.buckets.back().count = placement_.flat_count - placement_.buckets.back().begin;
  return std::move(placement_);
}

}  // namespace

Placement PlaceUnits(const std::vector<UnitSpec>& units, int dp, int64_t bucket_count_min) {
  Placer one_bucket(units, dp, std::vector<bool>(units.size()));
  Placement placement = one_bucket.Place();
  const std::vector<bool> cuts = CutIntoBuckets(one_bucket.borders(), bucket_count_min);
  if (std::find(cuts.begin(), cuts.end(), true) == cuts.end()) return placement;
  return Placer(units, dp, cuts).Place();
}

void ForPadding(const Placement& placement, int bucket,
                absl::FunctionRef<void(const FlatRange&)> visit) {
  int64_t next = placement.buckets[bucket].begin;
  const auto visit_until = [&](int64_t end) {
    if (next < end) visit({next, end});
  };
  for (const Placement::Tensor& tensor : placement.tensors) {
    if (tensor.bucket != bucket) continue;
    visit_until(tensor.begin);
    next = tensor.begin + tensor.count;
  }
  visit_until(placement.buckets[bucket].end());
}

// A tied table lies before the blocks, and its first gradient is the head's.
FlatRange TensorsBefore(const Placement& placement, int unit) {
  const int64_t first = RoundUp(placement.units_begin, kParameterAlignment);
  FlatRange range = {first, first};
  for (const Placement::Tensor& tensor : placement.tensors) {
    if (tensor.begin < placement.units_begin) continue;
    const int64_t end = RoundUp(tensor.begin + tensor.count, kParameterAlignment);
    if (tensor.last_unit < unit) {
      range.second = end;
    } else if (range.first < range.second) {
      break;
    } else {
      range = {end, end};
    }
  }
  return range;
}

std::vector<int64_t> SlotCounts(const Placement& placement) {
  std::vector<int64_t> slots(std::min<size_t>(placement.buckets.size() - 1, 2));
  for (size_t i = 1; i < placement.buckets.size(); ++i) {
    const int64_t count = placement.buckets[i].count;
    slots[0] = std::max(slots[0], count);
    if (i > 1) slots[1] = std::max(slots[1], std::min(count, placement.buckets[i - 1].count));
  }
  return slots;
}

}  // namespace convene::worker

#include "worker_runtime/shard/bucket_store.h"

#include <algorithm>
#include <utility>

#include "tools/base/check.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/ops/elementwise.h"

namespace convene::worker {
namespace {

int64_t LargestBucket(const Placement& placement) {
  int64_t largest = 0;
  for (const ParameterBucket& bucket : placement.buckets) largest = std::max(largest, bucket.count);
  return largest;
}

// Bucket 0 begins with tensors of every unit.
std::vector<int> UnitsByBucket(const Placement& placement) {
  std::vector<int> units(placement.buckets.size());
  for (const Placement::Unit& unit : placement.units) ++units[unit.bucket];
  units.front() = static_cast<int>(placement.units.size());
  return units;
}

}  // namespace

BucketStore::BucketStore(Placement placement, const Options& options, const Groups& groups,
                         Device& device, Arena& arena)
    : placement_(std::move(placement)),
      options_(options),
      groups_(groups),
      device_(device),
      arena_(arena),
      communication_(options.overlaps ? device.communication() : device.compute()),
      shard_(MakeFlatShard(placement_, groups.dp.size(), groups.dp.rank())),
      parameters_memory_(arena.Declare<char>(
          "parameters", placement_.flat_count * SizeOf(options.dtype), ArenaPart::kCollective)),
      gradients_memory_(
          arena.Declare<float>("gradients", placement_.flat_count, ArenaPart::kCollective)),
      wire_memory_(arena.Declare<BFloat16>(
          "gradients on the wire",
          options.reduce_dtype == DType::kBFloat16 && is_parallel() ? LargestBucket(placement_) : 0,
          ArenaPart::kCollective)),
      copied_slices_(placement_, shard_, groups.tp, device, arena),
      bucket_units_(UnitsByBucket(placement_)),
      unfinished_units_(bucket_units_),
      reduced_from_(placement_.buckets.size()),
      awaited_(static_cast<int>(placement_.buckets.size())) {}

void BucketStore::Bind() {
  parameters_ = {arena_.View(parameters_memory_).data(), static_cast<size_t>(placement_.flat_count),
                 options_.dtype};
  gradients_ = arena_.View(gradients_memory_);
  wire_ = arena_.View(wire_memory_);
  copied_slices_.Bind();
  for (const Placement::Unit& unit : placement_.units) {
    std::vector<const void*>& weights = weights_.emplace_back();
    for (const int tensor : unit.tensors) {
      const Placement::Tensor& place = placement_.tensors[tensor];
      weights.push_back(parameters_.Slice(place.begin, place.count).data);
    }
  }
  if (!is_parallel()) return;
  order_ = device_.MakeEvent();
  copied_ = device_.MakeEvent();
  for (size_t i = 0; i < shard_.parts.size(); ++i) gathered_.push_back(device_.MakeEvent());
}

void BucketStore::OrderBehind(Stream& earlier, Stream& later) {
  device_.Record(*order_, earlier);
  device_.Order(*order_, later);
}

void BucketStore::AwaitCommunication() {
  if (!is_parallel()) return;
  OrderBehind(communication_, device_.compute());
  awaited_ = static_cast<int>(shard_.parts.size());
  awaits_copy_ = false;
}

// Gathers run in order, so the wait for the last one covers the others.
absl::StatusOr<absl::Span<const void* const>> BucketStore::Acquire(int unit) {
  const Placement::Unit& place = placement_.units[unit];
  if (place.bucket >= awaited_) {
    device_.Order(*gathered_[place.bucket], device_.compute());
    awaited_ = place.bucket + 1;
    CONVENE_RETURN_IF_ERROR(groups_.dp_gather.Check());
  }
  if (awaits_copy_ && std::find(place.tensors.begin(), place.tensors.end(),
                                placement_.on_both_ends) != place.tensors.end()) {
    device_.Order(*copied_, device_.compute());
    awaits_copy_ = false;
  }
  return weights_[unit];
}

WeightGradient BucketStore::Gradient(int unit, int tensor, bool is_first) {
  const Placement::Tensor& place = placement_.tensors[placement_.units[unit].tensors[tensor]];
  return {.data = gradients_.data() + place.begin, .adds = !is_first || unit != place.last_unit};
}

absl::Status BucketStore::GradientsDone(int unit, bool is_last) {
  if (!is_last) return absl::OkStatus();
  const int bucket = placement_.units[unit].bucket;
  --unfinished_units_[bucket];
  if (bucket > 0) --unfinished_units_.front();
  return is_parallel() && !options_.reduces_at_end ? ReduceFinalBuckets() : absl::OkStatus();
}

// The bucket of a shared tensor waits for the tensor's sum over both ends.
absl::Status BucketStore::ReduceFinalBuckets() {
  const Placement::Tensor* const shared = SharedTensor();
  while (reduced_from_ > 0 && unfinished_units_[reduced_from_ - 1] == 0) {
    const ShardPart& part = shard_.parts[reduced_from_ - 1];
    if (shared != nullptr && part.bucket.begin < shared->begin + shared->count) break;
    CONVENE_RETURN_IF_ERROR(Reduce(part));
    --reduced_from_;
  }
  return absl::OkStatus();
}

absl::Status BucketStore::SumOverDp(Elements bucket, const ShardPart& part, Stream& stream) {
  CONVENE_RETURN_IF_ERROR(groups_.dp.ReduceScatter(bucket, ReduceOp::kSum, stream));
  return groups_.dp_replicate.AllReduce(
      bucket.Slice(part.flat_begin - part.bucket.begin, part.count), ReduceOp::kSum, stream);
}

// Everything runs in the communication stream, rounding and widening too: they use memory bandwidth
// that products leave free, and the wire's memory needs no event, because buckets use it one after
// the other.
absl::Status BucketStore::Reduce(const ShardPart& part) {
  Stream& stream = communication_;
  OrderBehind(device_.compute(), stream);
  const absl::Span<float> gradients = gradients_.subspan(part.bucket.begin, part.bucket.count);
  if (wire_.empty()) return SumOverDp(gradients, part, stream);
  const absl::Span<BFloat16> wire = wire_.subspan(0, part.bucket.count);
  ToBFloat16(part.bucket.count, gradients.data(), wire.data(), stream);
  CONVENE_RETURN_IF_ERROR(SumOverDp(wire, part, stream));
  ToFloat(part.count, wire.data() + (part.flat_begin - part.bucket.begin),
          gradients_.data() + part.flat_begin, stream);
  return absl::OkStatus();
}

absl::Status BucketStore::FinishReducing() {
  unfinished_units_ = bucket_units_;
  CONVENE_RETURN_IF_ERROR(SumOverBothEnds());
  if (is_parallel()) {
    while (reduced_from_ > 0) CONVENE_RETURN_IF_ERROR(Reduce(shard_.parts[--reduced_from_]));
    AwaitCommunication();
    CONVENE_RETURN_IF_ERROR(groups_.dp.Check());
    CONVENE_RETURN_IF_ERROR(groups_.dp_replicate.Check());
    reduced_from_ = shard_.parts.size();
  }
  CONVENE_RETURN_IF_ERROR(copied_slices_.Sum(
      [&](const ShardPart& part) { return gradients_.subspan(part.flat_begin, part.count); }));
  return ShareOverTp();
}

const Placement::Tensor* BucketStore::SharedTensor() const {
  if (placement_.on_both_ends < 0 || groups_.embedding == nullptr ||
      groups_.embedding->size() == 1) {
    return nullptr;
  }
  return &placement_.tensors[placement_.on_both_ends];
}

// Each end has only the gradients of its own use of the tied table.
absl::Status BucketStore::SumOverBothEnds() {
  const Placement::Tensor* const shared = SharedTensor();
  if (shared == nullptr) return absl::OkStatus();
  return groups_.embedding->AllReduce(gradients_.subspan(shared->begin, shared->count),
                                      ReduceOp::kSum, device_.compute());
}

// The two copies lie in different shards of their ranks, so NCCL may add their gradients up over dp
// in different orders: without this the copies would drift apart. Gloo's order is the ranks'.
// It is queued behind all gathers, which on the last stage bring the table's old copy, or where
// there are none behind the update. The first
// stage's gathers need not wait until the last stage has come so far.
absl::Status BucketStore::CopyToOtherEnd() {
  const Placement::Tensor* const shared = SharedTensor();
  if (shared == nullptr || !is_parallel() || device_.kind() == DeviceKind::kCpu) {
    return absl::OkStatus();
  }
  Stream& stream = communication_;
  if (groups_.dp_gather.size() == 1) OrderBehind(device_.compute(), stream);
  CONVENE_RETURN_IF_ERROR(groups_.embedding->Broadcast(
      parameters_.Slice(shared->begin, shared->count), /*root=*/0, stream));
  device_.Record(*copied_, stream);
  awaits_copy_ = groups_.embedding->rank() > 0;  // the root keeps what it has
  return absl::OkStatus();
}

// Where rows are not split, every tensor-parallel rank makes the same gradients for the norms, and
// each adds these up over a data-parallel group of its own: where three or more ranks add up,
// NCCL's order, and so the last bit, may differ from group to group, and the copies of a norm would
// drift apart. One rank's sum counts. Gloo's order is the ranks'.
absl::Status BucketStore::ShareOverTp() {
  const ShardPart& part = shard_.parts.front();
  const int64_t end = std::min(placement_.same_on_tp_end, part.flat_begin + part.count);
  if (groups_.tp.size() == 1 || end <= part.flat_begin) return absl::OkStatus();
  const absl::Span<float> norms = gradients_.subspan(part.flat_begin, end - part.flat_begin);
  if (options_.sums_over_tp) {
    return groups_.tp.AllReduce(norms, ReduceOp::kSum, device_.compute());
  }
  if (dp_size() < 3 || device_.kind() == DeviceKind::kCpu) return absl::OkStatus();
  return groups_.tp.Broadcast(norms, /*root=*/0, device_.compute());
}

absl::Status BucketStore::Gather(size_t bucket) {
  if (groups_.dp_gather.size() == 1) return absl::OkStatus();
  const ParameterBucket& place = placement_.buckets[bucket];
  Stream& stream = communication_;
  OrderBehind(device_.compute(), stream);
  CONVENE_RETURN_IF_ERROR(
      groups_.dp_gather.AllGather(parameters_.Slice(place.begin, place.count), stream));
  device_.Record(*gathered_[bucket], stream);
  awaited_ = 0;
  return absl::OkStatus();
}

}  // namespace convene::worker

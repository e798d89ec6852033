#include "worker_runtime/shard/bucket_store.h"

#include <algorithm>
#include <utility>

#include "tools/base/check.h"
#include "tools/base/status_macros.h"

namespace convene::worker {
namespace {

// Bucket 0 begins with tensors of every unit.
std::vector<int> UnitsByBucket(const Placement& placement) {
  std::vector<int> units(placement.buckets.size());
  for (const Placement::Unit& unit : placement.units) ++units[unit.bucket];
  units.front() = static_cast<int>(placement.units.size());
  return units;
}

}  // namespace

BucketStore::BucketStore(Placement placement, const Options& options, const Groups& groups,
                         Device& device, Arena& arena, Arena& parameter_arena)
    : placement_(std::move(placement)),
      options_(options),
      groups_(groups),
      device_(device),
      shard_(MakeFlatShard(placement_, groups.dp.size(), groups.dp.rank())),
      parameters_(arena.Declare<char>("parameters",
                                      WholeCount(options.shards_parameters) * SizeOf(options.dtype),
                                      ArenaPart::kCollective)),
      gradients_(arena.Declare<float>("gradients",
                                      options.is_frozen || options.binned_summands > 0
                                          ? 0
                                          : WholeCount(options.shards_gradients),
                                      ArenaPart::kCollective)),
      order_(device, options.overlaps),
      sum_(placement_, groups.dp, groups.dp_replicate,
           options.is_frozen ? DType::kFloat32 : options.reduce_dtype, arena),
      copied_slices_(placement_, shard_, groups.tp, device, arena),
      bucket_units_(UnitsByBucket(placement_)),
      unfinished_units_(bucket_units_),
      reduced_from_(
          options.shards_gradients || options.binned_summands > 0 ? 1 : placement_.buckets.size()),
      copied_(device),
      published_(placement_.buckets.size()) {
  const bool is_binned = options.binned_summands > 0 && !options.is_frozen;
  if (is_binned) {
    binned_.emplace(placement_, shard_, options.binned_summands, options.shards_gradients,
                    groups.dp, groups.dp_replicate, device, arena);
  }
  if (options.shards_gradients || is_binned) {
    gradient_shards_.emplace(placement_, shard_, sum_, is_binned ? &*binned_ : nullptr,
                             groups.dp_replicate, order_, arena);
  }
  if (options.shards_parameters) {
    parameter_shards_.emplace(placement_, shard_,
                              ParameterShards::Options{.dtype = options.dtype,
                                                       .reshards = options.reshards_after_forward},
                              groups.dp_gather, order_, arena, parameter_arena);
  }
  for (const Placement::Unit& unit : placement_.units) weights_.emplace_back(unit.tensors.size());
  for (size_t i = 0; i < shard_.parts.size(); ++i) gathered_.emplace_back(device_);
}

void BucketStore::AwaitCommunication() {
  if (is_parallel() || updates_beside()) order_.AwaitAll();
}

absl::StatusOr<absl::Span<const void* const>> BucketStore::Acquire(int unit) {
  const Placement::Unit& place = placement_.units[unit];
  const ParameterBucket& bucket = placement_.buckets[place.bucket];
  const bool is_sharded = AreSharded(parameter_shards_, bucket);
  CONVENE_RETURN_IF_ERROR(FinishUpdate(place.bucket));
  if (gradient_shards_.has_value()) gradient_shards_->BeginPass();
  Elements gathered;
  if (is_sharded) {
    CONVENE_ASSIGN_OR_RETURN(gathered, parameter_shards_->Acquire(place.bucket));
  }
  std::vector<const void*>& weights = weights_[unit];
  for (size_t i = 0; i < weights.size(); ++i) {
    const Placement::Tensor& tensor = placement_.tensors[place.tensors[i]];
    weights[i] = is_sharded && tensor.bucket == place.bucket
                     ? gathered.Slice(tensor.begin - bucket.begin, tensor.count).data
                     : parameters().Slice(tensor.begin, tensor.count).data;
  }
  if (is_sharded) {
    order_.Await(gathered_.front());
    return weights;
  }
  // Gathers run in order, and the copy behind them, so a wait covers those before it.
  if (std::find(place.tensors.begin(), place.tensors.end(), placement_.on_both_ends) !=
      place.tensors.end()) {
    order_.Await(copied_);
  }
  order_.Await(gathered_[place.bucket]);
  if (is_parallel()) CONVENE_RETURN_IF_ERROR(groups_.dp_gather.Check());
  return weights;
}

void BucketStore::Release(int unit) {
  const int bucket = placement_.units[unit].bucket;
  if (AreSharded(parameter_shards_, placement_.buckets[bucket])) parameter_shards_->Release(bucket);
}

absl::Status BucketStore::Prefetch(int unit) {
  const int bucket = placement_.units[unit].bucket;
  // To wait for the host here would keep back the current unit's ops. The condition is the same on
  // all ranks: it depends on the order of calls alone.
  if (static_cast<size_t>(bucket) >= published_) return absl::OkStatus();
  return AreSharded(parameter_shards_, placement_.buckets[bucket])
             ? parameter_shards_->Prefetch(bucket)
             : absl::OkStatus();
}

WeightGradient BucketStore::Gradient(int unit, int tensor, bool is_first) {
  if (options_.is_frozen) return {};
  const int index = placement_.units[unit].tensors[tensor];
  const Placement::Tensor& place = placement_.tensors[index];
  if (InSlots(placement_.buckets[place.bucket])) {
    return gradient_shards_->Gradient(place.bucket, index);
  }
  return {.data = At(gradients_) + place.begin, .adds = !is_first || unit != place.last_unit};
}

ArenaBlock<float> BucketStore::IdleGradients(int unit) const {
  if (!options_.one_pass || options_.is_frozen || gradient_shards_.has_value()) return {};
  const auto [begin, end] = TensorsBefore(placement_, unit);
  return gradients_.Slice(begin, end - begin);
}

absl::Status BucketStore::GradientsDone(int unit, bool is_last) {
  if (options_.is_frozen) return absl::OkStatus();
  const int bucket = placement_.units[unit].bucket;
  if (is_last) {
    --unfinished_units_[bucket];
    if (bucket > 0) --unfinished_units_.front();
  }
  const bool is_final = is_last && bucket > 0 && unfinished_units_[bucket] == 0;
  if (is_final) ZeroPadding(bucket);
  made_ = order_.Mark();
  if (gradient_shards_.has_value()) gradient_shards_->BeginPass();
  if (AreSharded(gradient_shards_, placement_.buckets[bucket])) {
    CONVENE_RETURN_IF_ERROR(gradient_shards_->Add(bucket, made_, is_final));
    if (is_final) Reduced(shard_.parts[bucket], order_.communication());
  } else if (is_final && !is_parallel()) {
    Reduced(shard_.parts[bucket], order_.compute());
  }
  if (!is_last || !is_parallel() || options_.reduces_at_end) return absl::OkStatus();
  return ReduceFinalBuckets();
}

// The bucket of a shared tensor waits for the tensor's sum over both ends.
absl::Status BucketStore::ReduceFinalBuckets() {
  const Placement::Tensor* const shared = SharedTensor();
  while (reduced_from_ > 0 && unfinished_units_[reduced_from_ - 1] == 0) {
    const ShardPart& part = shard_.parts[reduced_from_ - 1];
    if (shared != nullptr && !gradient_shards_.has_value() &&
        part.bucket.begin < shared->begin + shared->count) {
      break;
    }
    CONVENE_RETURN_IF_ERROR(Reduce(part));
    --reduced_from_;
  }
  return absl::OkStatus();
}

absl::Status BucketStore::Reduce(const ShardPart& part) {
  if (binned_.has_value()) return gradient_shards_->Add(/*bucket=*/0, made_, /*is_final=*/true);
  order_.Follow(made_);
  CONVENE_RETURN_IF_ERROR(sum_.Queue(gradients().subspan(part.bucket.begin, part.bucket.count),
                                     /*of_all=*/true, order_.communication()));
  Reduced(part, order_.communication());
  return absl::OkStatus();
}

bool BucketStore::IsFinalWhenReduced(size_t bucket) const {
  const ShardPart& part = shard_.parts[bucket];
  if (bucket == 0 || copied_slices_.HasPiecesIn(part)) return false;
  // Whole buckets are reduced behind the sum over both ends, where anything is reduced.
  const Placement::Tensor* const shared = SharedTensor();
  const bool is_summed_later = gradient_shards_.has_value() || !is_parallel();
  return shared == nullptr || !is_summed_later || part.bucket.end() <= shared->begin ||
         part.bucket.begin >= shared->begin + shared->count;
}

void BucketStore::Reduced(const ShardPart& part, Stream& stream) {
  const size_t bucket = &part - shard_.parts.data();
  if (!IsFinalWhenReduced(bucket)) return;
  if (binned_.has_value()) binned_->Round(static_cast<int>(bucket), stream);
  if (when_reduced_ != nullptr) when_reduced_(part, stream);
}

absl::Status BucketStore::FinishReducing() {
  if (options_.is_frozen) return absl::OkStatus();
  unfinished_units_ = bucket_units_;
  if (!gradient_shards_.has_value()) CONVENE_RETURN_IF_ERROR(SumOverBothEnds());
  if (is_parallel()) {
    while (reduced_from_ > 0) CONVENE_RETURN_IF_ERROR(Reduce(shard_.parts[--reduced_from_]));
    order_.AwaitAll();
    CONVENE_RETURN_IF_ERROR(groups_.dp.Check());
    CONVENE_RETURN_IF_ERROR(groups_.dp_replicate.Check());
    reduced_from_ = gradient_shards_.has_value() ? 1 : shard_.parts.size();
  }
  ZeroPadding(0);
  if (gradient_shards_.has_value()) {
    CONVENE_RETURN_IF_ERROR(SumOverBothEnds());
    gradient_shards_->BeginStep();
  }
  for (size_t i = 0; binned_.has_value() && i < shard_.parts.size(); ++i) {
    if (!IsFinalWhenReduced(i)) binned_->Round(static_cast<int>(i), order_.compute());
  }
  CONVENE_RETURN_IF_ERROR(
      copied_slices_.Sum([&](const ShardPart& part) { return GradientsOf(part); }));
  return ShareOverTp();
}

// The optimizer takes it for gradients, and whoever used idle ones has written there.
void BucketStore::ZeroPadding(int bucket) {
  if (!options_.one_pass || gradient_shards_.has_value()) return;
  ForPadding(placement_, bucket, [&](const FlatRange& gap) {
    device_.Zero(At(gradients_) + gap.first, (gap.second - gap.first) * sizeof(float),
                 device_.compute());
  });
}

const Placement::Tensor* BucketStore::SharedTensor() const {
  if (placement_.on_both_ends < 0 || groups_.embedding == nullptr ||
      groups_.embedding->size() == 1) {
    return nullptr;
  }
  return &placement_.tensors[placement_.on_both_ends];
}

// Each end has only the gradients of its own use of the tied table. A table whose gradients are
// sharded is a bucket of its own on each end, so ranks of one place in dp have the same part of it.
absl::Status BucketStore::SumOverBothEnds() {
  const Placement::Tensor* const shared = SharedTensor();
  if (shared == nullptr) return absl::OkStatus();
  if (binned_.has_value()) {
    return binned_->SumOver(*groups_.embedding, shared->bucket, order_.compute());
  }
  const absl::Span<float> of_this_end = gradient_shards_.has_value()
                                            ? GradientsOf(shard_.parts[shared->bucket])
                                            : gradients().subspan(shared->begin, shared->count);
  CONVENE_RETURN_IF_ERROR(
      groups_.embedding->AllReduce(of_this_end, ReduceOp::kSum, device_.compute()));
  made_ = order_.Mark();
  return absl::OkStatus();
}

// The two copies lie in different shards of their ranks, so NCCL may add their gradients up over dp
// in different orders: without this the copies would drift apart. Gloo's order is the ranks'; and
// where gradients are sharded, both ends get one sum. It is queued behind all gathers, which on the
// last stage bring the table's old copy, or where there are none behind the update. The first
// stage's gathers need not wait until the last stage has come so far.
absl::Status BucketStore::CopyToOtherEnd() {
  const Placement::Tensor* const shared = SharedTensor();
  if (shared == nullptr || !is_parallel() || gradient_shards_.has_value() ||
      device_.kind() == DeviceKind::kCpu) {
    return absl::OkStatus();
  }
  if (groups_.dp_gather.size() == 1 && !updates_beside()) order_.Follow(order_.Mark());
  CONVENE_RETURN_IF_ERROR(groups_.embedding->Broadcast(
      parameters().Slice(shared->begin, shared->count), /*root=*/0, order_.communication()));
  // The root keeps what it has.
  if (groups_.embedding->rank() > 0) order_.Record(copied_);
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
  const absl::Span<float> norms = GradientsOf(part).subspan(0, end - part.flat_begin);
  if (options_.sums_over_tp) {
    return groups_.tp.AllReduce(norms, ReduceOp::kSum, device_.compute());
  }
  if (dp_size() < 3 || device_.kind() == DeviceKind::kCpu) return absl::OkStatus();
  return groups_.tp.Broadcast(norms, /*root=*/0, device_.compute());
}

void BucketStore::BeginUpdate(std::function<absl::Status(size_t bucket)> publish) {
  CONVENE_CHECK(published_ == shard_.parts.size());
  publish_ = std::move(publish);
  published_ = 0;
}

absl::Status BucketStore::FinishUpdate(size_t bucket) {
  for (; published_ <= bucket; ++published_) CONVENE_RETURN_IF_ERROR(publish_(published_));
  return absl::OkStatus();
}

// A CPU's threads are all busy with one op after the other.
bool BucketStore::updates_beside() const {
  return options_.updates_beside && options_.overlaps && device_.kind() != DeviceKind::kCpu;
}

Stream& BucketStore::UpdateStream() {
  if (!updates_beside()) return order_.compute();
  order_.Follow(order_.Mark());
  return order_.communication();
}

absl::Status BucketStore::Updated(size_t bucket, const Stream& stream) {
  const bool is_beside = &stream != &order_.compute();
  // A gather follows an update beside compute() in the same stream.
  CONVENE_RETURN_IF_ERROR(Changed(bucket, is_beside ? 0 : order_.Mark()));
  if (is_beside && groups_.dp_gather.size() == 1) order_.Record(gathered_[bucket]);
  return absl::OkStatus();
}

// The host has waited for all ops that read the part's old values. A gather follows the copy in the
// same stream.
absl::Status BucketStore::Load(size_t bucket, ConstElements weights) {
  const ShardPart& part = shard_.parts[bucket];
  const Elements place = ParametersOf(part);
  if (weights.data != place.data) {
    const bool is_gathered = HoldsShardOf(part) || groups_.dp_gather.size() > 1;
    device_.Copy(weights.data, place.data, weights.size_bytes(),
                 is_gathered ? order_.communication() : order_.compute());
  }
  return Changed(bucket, /*mark=*/0);
}

absl::Status BucketStore::Changed(size_t bucket, int64_t mark) {
  const ParameterBucket& place = placement_.buckets[bucket];
  if (AreSharded(parameter_shards_, place)) {
    parameter_shards_->Updated(static_cast<int>(bucket), mark);
    return absl::OkStatus();
  }
  if (groups_.dp_gather.size() == 1) return absl::OkStatus();
  order_.Follow(mark);
  CONVENE_RETURN_IF_ERROR(groups_.dp_gather.AllGather(parameters().Slice(place.begin, place.count),
                                                      order_.communication()));
  order_.Record(gathered_[bucket]);
  return absl::OkStatus();
}

}  // namespace convene::worker

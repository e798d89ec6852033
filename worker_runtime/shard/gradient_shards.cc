#include "worker_runtime/shard/gradient_shards.h"

#include <algorithm>
#include <utility>

#include "tools/base/check.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/ops/elementwise.h"

namespace convene::worker {

GradientShards::GradientShards(const Placement& placement, const FlatShard& shard, BucketSum& sum,
                               BinnedGradients* binned, Collective& dp_replicate,
                               StreamOrder& order, Arena& arena)
    : placement_(placement),
      shard_(shard),
      sum_(sum),
      binned_(binned),
      dp_replicate_(dp_replicate),
      order_(order),
      first_(shard.parts.front().count),
      // Sums over copies, and over both ends of the pipeline, are made in it.
      own_(arena.Declare<float>("gradients/shard", binned != nullptr ? 0 : shard.count - first_,
                                ArenaPart::kCollective)),
      is_made_(placement.tensors.size()),
      has_sum_(placement.buckets.size()),
      made_in_(placement.tensors.size()) {
  if (binned != nullptr) {
    slots_.push_back({arena.Declare<float>("gradients/norms", shard.parts.front().bucket.count),
                      CommunicationPoint(order.device()), /*is_of_first=*/true});
  }
  for (const int64_t count : SlotCounts(placement)) {
    slots_.push_back({arena.Declare<float>("gradients/units", count, ArenaPart::kCollective),
                      CommunicationPoint(order.device())});
  }
}

GradientShards::Slot* GradientShards::Find(int bucket) {
  const auto found = std::find_if(slots_.begin(), slots_.end(),
                                  [&](const Slot& slot) { return slot.bucket == bucket; });
  return found == slots_.end() ? nullptr : &*found;
}

// Slots are shared, so between the tensors lies what another bucket left there. The optimizer takes
// it for gradients.
void GradientShards::ZeroPadding(const Slot& slot) {
  const int64_t begin = placement_.buckets[slot.bucket].begin;
  ForPadding(placement_, slot.bucket, [&](const FlatRange& gap) {
    order_.device().Zero(At(slot.memory) + (gap.first - begin),
                         (gap.second - gap.first) * sizeof(float), order_.compute());
  });
}

// An empty slot that is large enough, the one that has been so for the longest time; or where all
// are taken (a head's gradients come in the forward pass and wait for the backward one) the one
// that was taken first is summed as far as it is.
GradientShards::Slot& GradientShards::Take(int bucket) {
  const auto fitness = [&](const Slot& slot) {
    return std::make_pair(slot.bucket >= 0, slot.taken);
  };
  Slot* best = nullptr;
  for (Slot& slot : slots_) {
    if (static_cast<int64_t>(slot.memory.size()) < placement_.buckets[bucket].count) continue;
    if (slot.is_of_first != (bucket == 0)) continue;
    if (best == nullptr || fitness(slot) < fitness(*best)) best = &slot;
  }
  CONVENE_CHECK(best != nullptr);
  if (best->bucket >= 0) error_.Update(Empty(*best, order_.Mark()));
  order_.Await(best->summed);
  best->bucket = bucket;
  best->taken = ++takes_;
  ZeroPadding(*best);
  return *best;
}

WeightGradient GradientShards::Gradient(int bucket, int tensor) {
  Slot* slot = Find(bucket);
  if (binned_ != nullptr && slot != nullptr && is_made_[tensor] && made_in_[tensor] != pass_) {
    error_.Update(Empty(*slot, order_.Mark()));
    slot = nullptr;
  }
  if (slot == nullptr) slot = &Take(bucket);
  const bool adds = is_made_[tensor];
  is_made_[tensor] = true;
  made_in_[tensor] = pass_;
  const int64_t place = placement_.tensors[tensor].begin - placement_.buckets[bucket].begin;
  return {.data = At(slot->memory) + place, .adds = adds};
}

// Experts' gradients come with the input half of a backward pass, the others of their unit with the
// weight half: a slot that is emptied between the two has only some of them.
void GradientShards::ZeroWhatIsNotMade(const Slot& slot, Stream& stream) {
  for (size_t i = 0; i < is_made_.size(); ++i) {
    const Placement::Tensor& tensor = placement_.tensors[i];
    if (tensor.bucket != slot.bucket || is_made_[i]) continue;
    order_.device().Zero(At(slot.memory) + (tensor.begin - placement_.buckets[slot.bucket].begin),
                         tensor.count * sizeof(float), stream);
  }
}

absl::Status GradientShards::Empty(Slot& slot, int64_t made) {
  const int bucket = slot.bucket;
  Stream& stream = order_.communication();
  order_.Follow(made);
  ZeroWhatIsNotMade(slot, stream);
  CONVENE_RETURN_IF_ERROR(
      AddToSums(bucket, slot.memory.span().subspan(0, placement_.buckets[bucket].count), stream));
  order_.Record(slot.summed);
  has_sum_[bucket] = true;
  slot.bucket = -1;
  for (size_t i = 0; i < is_made_.size(); ++i) {
    if (placement_.tensors[i].bucket == bucket) is_made_[i] = false;
  }
  return absl::OkStatus();
}

absl::Status GradientShards::AddToSums(int bucket, absl::Span<float> gradients, Stream& stream) {
  if (binned_ != nullptr) {
    return binned_->Add(bucket, !has_sum_[bucket], gradients.data(), stream);
  }
  const ShardPart& part = shard_.parts[bucket];
  CONVENE_RETURN_IF_ERROR(sum_.Queue(gradients, /*of_all=*/false, stream));
  const float* const summed = gradients.data() + (part.flat_begin - part.bucket.begin);
  if (has_sum_[bucket]) {
    AddInPlace(part.count, summed, Of(part).data(), stream);
  } else {
    Copy(part.count, summed, Of(part).data(), stream);
  }
  return absl::OkStatus();
}

absl::Status GradientShards::Add(int bucket, int64_t made, bool is_final) {
  CONVENE_RETURN_IF_ERROR(error_);
  if (Slot* const slot = Find(bucket); slot != nullptr) {
    CONVENE_RETURN_IF_ERROR(Empty(*slot, made));
  }
  if (!is_final) return absl::OkStatus();
  CONVENE_CHECK(has_sum_[bucket] || bucket == 0);  // that one may be padding alone
  if (binned_ != nullptr) return binned_->Finish(bucket, order_.communication());
  return dp_replicate_.AllReduce(Of(shard_.parts[bucket]), ReduceOp::kSum, order_.communication());
}

}  // namespace convene::worker

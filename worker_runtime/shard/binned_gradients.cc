#include "worker_runtime/shard/binned_gradients.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "tools/base/status_macros.h"

namespace convene::worker {
namespace {

// Of all buckets, or of all but the first.
int64_t LargestBucket(const Placement& placement, size_t from) {
  int64_t largest = 0;
  for (size_t i = from; i < placement.buckets.size(); ++i) {
    largest = std::max(largest, placement.buckets[i].count);
  }
  return largest;
}

int64_t KeptCount(const Placement& placement, const FlatShard& shard, bool is_sharded) {
  if (!is_sharded) return placement.flat_count;
  return shard.parts.front().bucket.count + shard.count - shard.parts.front().count;
}

}  // namespace

BinnedGradients::Memory::Memory(const char* name, int64_t count, Arena& arena)
    : high(arena.Declare<int32_t>(absl::StrCat(name, "/digits"), count, ArenaPart::kCollective)),
      low(arena.Declare<int32_t>(absl::StrCat(name, "/low digits"), count, ArenaPart::kCollective)),
      bins(arena.Declare<uint8_t>(absl::StrCat(name, "/bins"), count, ArenaPart::kCollective)) {}

BinnedGradients::BinnedGradients(const Placement& placement, const FlatShard& shard,
                                 int64_t summands, bool is_sharded, Collective& dp,
                                 Collective& dp_replicate, Device& device, Arena& arena)
    : shard_(shard),
      bits_(BinBits(summands)),
      is_sharded_(is_sharded),
      dp_(dp),
      dp_replicate_(dp_replicate),
      device_(device),
      kept_("gradients", KeptCount(placement, shard, is_sharded), arena),
      wire_("gradients on the wire", is_sharded ? LargestBucket(placement, 1) : 0, arena),
      agreed_(arena.Declare<uint8_t>("gradients/highest bins", LargestBucket(placement, 0),
                                     ArenaPart::kCollective)) {}

int64_t BinnedGradients::PlaceOf(const ShardPart& part) const {
  if (!is_sharded_ || part.bucket.begin == 0) return part.flat_begin;
  const ShardPart& first = shard_.parts.front();
  return first.bucket.count + part.shard_begin - first.count;
}

absl::Span<float> BinnedGradients::Of(const ShardPart& part) const {
  return {reinterpret_cast<float*>(At(kept_.high)) + PlaceOf(part),
          static_cast<size_t>(part.count)};
}

// First all ranks take the highest bin of any of them, then digits are plain whole numbers.
absl::Status BinnedGradients::SumDigits(Collective& group, int64_t count, const BinnedSums& sums,
                                        Result result, Stream& stream) {
  if (group.size() == 1) return absl::OkStatus();
  const absl::Span<uint8_t> agreed = agreed_.span().subspan(0, count);
  device_.Copy(sums.bins, agreed.data(), count, stream);
  CONVENE_RETURN_IF_ERROR(group.AllReduce(agreed, ReduceOp::kMax, stream));
  BinnedMerge(count, {.bins = agreed.data()}, sums, stream);
  for (int32_t* const digits : {sums.high, sums.low}) {
    const Elements all = absl::MakeSpan(digits, count);
    CONVENE_RETURN_IF_ERROR(result == Result::kAll
                                ? group.AllReduce(all, ReduceOp::kSum, stream)
                                : group.ReduceScatter(all, ReduceOp::kSum, stream));
  }
  return absl::OkStatus();
}

absl::Status BinnedGradients::Add(int bucket, bool is_first, const float* gradients,
                                  Stream& stream) {
  const ShardPart& part = shard_.parts[bucket];
  if (!KeepsPart(bucket)) {
    BinnedAdd(part.bucket.count, bits_, is_first, gradients, kept_.From(part.bucket.begin), stream);
    return absl::OkStatus();
  }
  BinnedAdd(part.bucket.count, bits_, /*is_first=*/true, gradients, wire_.sums(), stream);
  CONVENE_RETURN_IF_ERROR(SumDigits(dp_, part.bucket.count, wire_.sums(), Result::kShard, stream));
  const BinnedSums summed = wire_.From(part.flat_begin - part.bucket.begin);
  const BinnedSums kept = kept_.From(PlaceOf(part));
  if (is_first) {
    device_.Copy(summed.high, kept.high, part.count * sizeof(int32_t), stream);
    device_.Copy(summed.low, kept.low, part.count * sizeof(int32_t), stream);
    device_.Copy(summed.bins, kept.bins, part.count, stream);
  } else {
    BinnedMerge(part.count, summed, kept, stream);
  }
  return absl::OkStatus();
}

absl::Status BinnedGradients::Finish(int bucket, Stream& stream) {
  const ParameterBucket& place = shard_.parts[bucket].bucket;
  if (!KeepsPart(bucket)) {
    CONVENE_RETURN_IF_ERROR(
        SumDigits(dp_, place.count, kept_.From(place.begin), Result::kShard, stream));
  }
  return SumOver(dp_replicate_, bucket, stream);
}

absl::Status BinnedGradients::SumOver(Collective& group, int bucket, Stream& stream) {
  const ShardPart& part = shard_.parts[bucket];
  return SumDigits(group, part.count, kept_.From(PlaceOf(part)), Result::kAll, stream);
}

void BinnedGradients::Round(int bucket, Stream& stream) {
  const ShardPart& part = shard_.parts[bucket];
  BinnedRound(part.count, bits_, kept_.From(PlaceOf(part)), stream);
}

}  // namespace convene::worker

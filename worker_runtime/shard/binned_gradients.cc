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

// Whether two units have a tensor, as a tied table: a rank that has both makes two summands of it.
bool SharesTensors(const Placement& placement) {
  size_t uses = 0;
  for (const Placement::Unit& unit : placement.units) uses += unit.tensors.size();
  return uses > placement.tensors.size();
}

float* Plain(int32_t* digits) { return reinterpret_cast<float*>(digits); }

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
      keeps_floats_(dp.size() > 1 && summands == int64_t{dp.size()} * dp_replicate.size() &&
                    !SharesTensors(placement)),
      is_sharded_(is_sharded),
      dp_(dp),
      dp_replicate_(dp_replicate),
      device_(device),
      kept_("gradients", KeptCount(placement, shard, is_sharded), arena),
      wire_(arena.Declare<float>("gradients on the wire",
                                 is_sharded ? LargestBucket(placement, 1) : 0,
                                 ArenaPart::kCollective)),
      agreed_(arena.Declare<uint8_t>("gradients/highest bins", LargestBucket(placement, 0),
                                     ArenaPart::kCollective)) {}

int64_t BinnedGradients::PlaceOf(const ShardPart& part) const {
  if (!is_sharded_ || part.bucket.begin == 0) return part.flat_begin;
  const ShardPart& first = shard_.parts.front();
  return first.bucket.count + part.shard_begin - first.count;
}

absl::Span<float> BinnedGradients::Of(const ShardPart& part) const {
  return {Plain(At(kept_.high)) + PlaceOf(part), static_cast<size_t>(part.count)};
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

absl::Status BinnedGradients::Swap(const ShardPart& part, const float* gradients, float* arrived,
                                   Stream& stream) {
  if (dp_.size() == 1) return absl::OkStatus();
  const auto count = static_cast<size_t>(part.bucket.count);
  return dp_.AllToAll(absl::MakeConstSpan(gradients, count), absl::MakeSpan(arrived, count),
                      stream);
}

void BinnedGradients::AddParts(const ShardPart& part, bool is_first, const float* own,
                               const float* arrived, Stream& stream) {
  const BinnedSums sums = kept_.From(PlaceOf(part));
  BinnedAdd(part.count, bits_, is_first, own, sums, stream);
  for (int64_t begin = 0; begin < part.bucket.count; begin += part.count) {
    if (begin == part.flat_begin - part.bucket.begin) continue;
    BinnedAdd(part.count, bits_, /*is_first=*/false, arrived + begin, sums, stream);
  }
}

absl::Status BinnedGradients::Add(int bucket, bool is_first, const float* gradients,
                                  Stream& stream) {
  const ShardPart& part = shard_.parts[bucket];
  if (KeepsPart(bucket)) {
    CONVENE_RETURN_IF_ERROR(Swap(part, gradients, At(wire_), stream));
    const float* const own = gradients + (part.flat_begin - part.bucket.begin);
    AddParts(part, is_first, own, At(wire_), stream);
    return absl::OkStatus();
  }
  const BinnedSums sums = kept_.From(part.bucket.begin);
  if (!keeps_floats_) {
    BinnedAdd(part.bucket.count, bits_, is_first, gradients, sums, stream);
  } else if (is_first) {
    device_.Copy(gradients, sums.high, part.bucket.count * sizeof(float), stream);
  } else {  // Of an element that another call gave, this one has a zero.
    AddInPlace(part.bucket.count, gradients, Plain(sums.high), stream);
  }
  return absl::OkStatus();
}

absl::Status BinnedGradients::Finish(int bucket, Stream& stream) {
  const ShardPart& part = shard_.parts[bucket];
  if (!KeepsPart(bucket)) CONVENE_RETURN_IF_ERROR(SumOverShards(part, stream));
  return SumOver(dp_replicate_, bucket, stream);
}

absl::Status BinnedGradients::SumOverShards(const ShardPart& part, Stream& stream) {
  const BinnedSums sums = kept_.From(part.bucket.begin);
  if (!keeps_floats_) {
    return SumDigits(dp_, part.bucket.count, sums, Result::kShard, stream);
  }
  CONVENE_RETURN_IF_ERROR(Swap(part, Plain(sums.high), Plain(sums.low), stream));
  // The sums go where this rank's own floats are: these move to where another rank's were.
  const int64_t own = part.flat_begin - part.bucket.begin;
  const int64_t sent = own == 0 ? part.count : 0;
  device_.Copy(sums.low + own, sums.high + sent, part.count * sizeof(float), stream);
  AddParts(part, /*is_first=*/true, Plain(sums.high) + sent, Plain(sums.low), stream);
  return absl::OkStatus();
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

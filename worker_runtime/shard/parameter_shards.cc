#include "worker_runtime/shard/parameter_shards.h"

#include <algorithm>
#include <tuple>

#include "tools/base/check.h"
#include "tools/base/status_macros.h"

namespace convene::worker {
namespace {

// One for each bucket but the first.
std::vector<int64_t> CountsOf(const Placement& placement) {
  std::vector<int64_t> counts;
  for (size_t i = 1; i < placement.buckets.size(); ++i) {
    counts.push_back(placement.buckets[i].count);
  }
  return counts;
}

}  // namespace

ParameterShards::ParameterShards(const Placement& placement, const FlatShard& shard,
                                 const Options& options, Collective& dp_gather, StreamOrder& order,
                                 Arena& arena, Arena& shard_arena)
    : placement_(placement),
      shard_(shard),
      options_(options),
      dp_gather_(dp_gather),
      order_(order),
      first_(shard.parts.front().count),
      own_(shard_arena.Declare<char>("parameters/shard",
                                     (shard.count - first_) * SizeOf(options.dtype))),
      updated_(placement.buckets.size()) {
  for (const int64_t count : options.reshards ? SlotCounts(placement) : CountsOf(placement)) {
    slots_.push_back({arena.Declare<char>("parameters/units", count * SizeOf(options.dtype),
                                          ArenaPart::kCollective),
                      CommunicationPoint(order.device())});
  }
}

ParameterShards::Slot* ParameterShards::Find(int bucket) {
  const auto found = std::find_if(slots_.begin(), slots_.end(),
                                  [&](const Slot& slot) { return slot.bucket == bucket; });
  return found == slots_.end() ? nullptr : &*found;
}

// Of the slots that no pass reads the one that was read the longest time ago; null: there is none.
ParameterShards::Slot* ParameterShards::Choose(int bucket) {
  if (!options_.reshards) return &slots_[bucket - 1];
  const auto fitness = [](const Slot& slot) {
    return std::make_tuple(slot.is_awaited, slot.released, slot.memory.size());
  };
  Slot* best = nullptr;
  for (Slot& slot : slots_) {
    const auto count = static_cast<int64_t>(slot.memory.size() / SizeOf(options_.dtype));
    if (slot.users > 0 || count < placement_.buckets[bucket].count) continue;
    if (best == nullptr || fitness(slot) < fitness(*best)) best = &slot;
  }
  return best;
}

absl::Status ParameterShards::Gather(int bucket, Slot& slot) {
  const ShardPart& part = shard_.parts[bucket];
  const Elements whole = ElementsOf(slot.memory).Slice(0, part.bucket.count);
  const Elements own = Of(part);
  Stream& stream = order_.communication();
  order_.Follow(std::max(slot.released, updated_[bucket]));
  order_.device().Copy(own.data, whole.Slice(part.flat_begin - part.bucket.begin, part.count).data,
                       own.size_bytes(), stream);
  CONVENE_RETURN_IF_ERROR(dp_gather_.AllGather(whole, stream));
  order_.Record(slot.gathered);
  slot.bucket = bucket;
  return absl::OkStatus();
}

absl::StatusOr<Elements> ParameterShards::Acquire(int bucket) {
  Slot* slot = Find(bucket);
  if (slot == nullptr) {
    slot = Choose(bucket);
    CONVENE_CHECK(slot != nullptr);
    CONVENE_RETURN_IF_ERROR(Gather(bucket, *slot));
  }
  order_.Await(slot->gathered);
  CONVENE_RETURN_IF_ERROR(dp_gather_.Check());
  slot->is_awaited = false;
  ++slot->users;
  return ElementsOf(slot->memory).Slice(0, placement_.buckets[bucket].count);
}

void ParameterShards::Release(int bucket) {
  Slot* const slot = Find(bucket);
  CONVENE_CHECK(slot != nullptr && slot->users > 0);
  --slot->users;
  slot->released = order_.Mark();
}

absl::Status ParameterShards::Prefetch(int bucket) {
  if (Find(bucket) != nullptr) return absl::OkStatus();
  Slot* const slot = Choose(bucket);
  if (slot == nullptr || slot->is_awaited) return absl::OkStatus();
  CONVENE_RETURN_IF_ERROR(Gather(bucket, *slot));
  slot->is_awaited = true;
  return absl::OkStatus();
}

void ParameterShards::Updated(int bucket, int64_t mark) {
  updated_[bucket] = mark;
  Slot* const slot = Find(bucket);
  if (slot == nullptr) return;
  CONVENE_CHECK(slot->users == 0);
  slot->bucket = -1;
  slot->is_awaited = false;
}

}  // namespace convene::worker

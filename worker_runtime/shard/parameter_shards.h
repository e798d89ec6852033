// Parameters of which a rank keeps its shard alone (ZeRO-3, FSDP; Rajbhandari et al. 2020, section
// 5.3; Zhao et al. 2023).
//
// A unit's parameters are gathered into a slot, a place for a whole bucket, beside the arithmetic
// of the unit before it:
//
//   compute        forward 1 from slot 0   forward 2 from slot 1   forward 3 from slot 0
//                                       \  ^                    \  ^
//   communication  gather 2 into slot 1    gather 3 into slot 0    gather 4 into slot 1
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker_runtime/comm/collective.h"
#include "worker_runtime/device/arena.h"
#include "worker_runtime/device/elements.h"
#include "worker_runtime/shard/flat_shard.h"
#include "worker_runtime/shard/placement.h"
#include "worker_runtime/shard/stream_order.h"

namespace convene::worker {

// Of all buckets but bucket 0. Not thread-safe. Borrows the references that its constructor takes.
class ParameterShards {
 public:
  struct Options {
    DType dtype = DType::kFloat32;
    // A slot may be used for another bucket as soon as its unit's pass is over. Else each bucket
    // has a slot of its own, and is gathered once after each update.
    bool reshards = true;
  };

  // Declares the slots in `arena`, and the shard in `shard_arena`: memory from which the device
  // copies asynchronously.
  ParameterShards(const Placement& placement, const FlatShard& shard, const Options& options,
                  Collective& dp_gather, StreamOrder& order, Arena& arena, Arena& shard_arena);

  // The whole bucket; ops that compute() is given from now on may read it until Release. Errors:
  // the collective's.
  absl::StatusOr<Elements> Acquire(int bucket);
  void Release(int bucket);
  // Starts to gather the bucket, unless it lies gathered or no slot is free. Errors: as above.
  absl::Status Prefetch(int bucket);

  // This rank's part of a bucket. The one that writes it calls Updated behind the write.
  Elements Of(const ShardPart& part) const {
    return ElementsOf(own_).Slice(part.shard_begin - first_, part.count);
  }
  // The part has changed, by ops up to `mark` (0: by none that compute() still holds): what lies
  // gathered of the bucket is stale.
  void Updated(int bucket, int64_t mark);

 private:
  struct Slot {
    ArenaBlock<char> memory;
    CommunicationPoint gathered;
    int bucket = -1;
    int users = 0;            // calls of Acquire without their Release
    bool is_awaited = false;  // gathered for an Acquire that is still to come
    int64_t released = 0;     // the mark behind the last ops that read it
  };

  Elements ElementsOf(const ArenaBlock<char>& memory) const {
    return {At(memory), memory.size() / SizeOf(options_.dtype), options_.dtype};
  }
  Slot* Find(int bucket);
  Slot* Choose(int bucket);
  absl::Status Gather(int bucket, Slot& slot);

  const Placement& placement_;
  const FlatShard& shard_;
  const Options options_;
  Collective& dp_gather_;
  StreamOrder& order_;
  const int64_t first_;  // of the shard's elements that lie here
  const ArenaBlock<char> own_;
  std::vector<Slot> slots_;
  std::vector<int64_t> updated_;  // by bucket: the mark behind its last update
};

}  // namespace convene::worker

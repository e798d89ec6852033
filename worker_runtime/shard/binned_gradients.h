// The sums of a step's gradients over microbatches and ranks, as binned sums (ops/binned_digits.h):
// no layout changes their bits, as long as each summand, the gradient of one tensor in one pass of
// one microbatch, is the same.
//
// An element takes 9 bytes: the digits and the bin of its sum. Where each rank has one summand,
// between ranks travel the floats, to the rank that keeps the sum: 4 bytes an element, as many as
// in a plain sum. Else a maximum of bins, 1 byte an element both ways, and then the digits, 8
// bytes.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "worker_runtime/comm/collective.h"
#include "worker_runtime/device/arena.h"
#include "worker_runtime/device/device.h"
#include "worker_runtime/device/stream.h"
#include "worker_runtime/ops/binned_sum.h"
#include "worker_runtime/shard/flat_shard.h"
#include "worker_runtime/shard/placement.h"

namespace convene::worker {

// Not thread-safe. Borrows the references that its constructor takes. Errors of all calls: the
// collective's.
class BinnedGradients {
 public:
  // `summands`: as BinBits takes it, of any element, over all ranks. `is_sharded`: of all buckets
  // but the first this rank keeps the sums of its own part alone, and Add sums over `dp`; else all
  // sums are kept, and Finish sums over it. Declares its memory in `arena`.
  BinnedGradients(const Placement& placement, const FlatShard& shard, int64_t summands,
                  bool is_sharded, Collective& dp, Collective& dp_replicate, Device& device,
                  Arena& arena);

  // Adds the gradients of a whole bucket, which `gradients` holds. `is_first`: of this step.
  absl::Status Add(int bucket, bool is_first, const float* gradients, Stream& stream);
  // All gradients of the step are added: sums over the ranks that share a copy of the optimizer's
  // state, where Add has not, and over those that keep a copy of the shard.
  absl::Status Finish(int bucket, Stream& stream);
  // Sums this rank's part of the bucket over `group` too, whose ranks have the same part.
  absl::Status SumOver(Collective& group, int bucket, Stream& stream);
  // The sums of this rank's part become the floats that Of returns.
  void Round(int bucket, Stream& stream);

  // The rounded sums of a bucket's part, until the next step's first Add.
  absl::Span<float> Of(const ShardPart& part) const;

 private:
  // (count) sums that lie in three blocks.
  struct Memory {
    Memory(const char* name, int64_t count, Arena& arena);
    BinnedSums From(int64_t first) const { return sums().From(first); }
    BinnedSums sums() const { return {At(high), At(low), At(bins)}; }

    const ArenaBlock<int32_t> high, low;
    const ArenaBlock<uint8_t> bins;
  };

  bool KeepsPart(int bucket) const { return is_sharded_ && bucket > 0; }
  // Where the sums of the part of the bucket begin.
  int64_t PlaceOf(const ShardPart& part) const;
  // Each rank of dp sends the others their parts of the gradients of a bucket; theirs of its own
  // part, one behind the other, come to `arrived`.
  absl::Status Swap(const ShardPart& part, const float* gradients, float* arrived, Stream& stream);
  // Adds a part's gradients, of this rank and those that arrived, to its sums. The sums may lie in
  // `arrived` at this rank's place, which is not read.
  void AddParts(const ShardPart& part, bool is_first, const float* own, const float* arrived,
                Stream& stream);
  // Finish of dp, where all sums are kept.
  absl::Status SumOverShards(const ShardPart& part, Stream& stream);
  enum class Result { kAll, kShard };
  absl::Status SumDigits(Collective& group, int64_t count, const BinnedSums& sums, Result result,
                         Stream& stream);

  const FlatShard& shard_;
  const int bits_;
  // Each rank has one summand of each element: until Finish they lie as floats in kept_.high.
  const bool keeps_floats_;
  const bool is_sharded_;
  Collective& dp_;
  Collective& dp_replicate_;
  Device& device_;
  const Memory kept_;
  // Other ranks' parts, of one bucket after the other, where the rank keeps its part alone.
  const ArenaBlock<float> wire_;
  const ArenaBlock<uint8_t> agreed_;  // the highest bins of all ranks, of one sum after the other
};

}  // namespace convene::worker

// Gradients of which a rank keeps its shard alone (ZeRO-2; Rajbhandari et al. 2020, section 5.2).
//
// A unit's gradients of one microbatch are made in a slot, a place for a whole bucket, and are then
// summed over the ranks and added to the shard beside the next unit's arithmetic:
//
//   compute        backward 3 in slot 0   backward 2 in slot 1   backward 1 in slot 0
//                                      \                      \  ^
//   communication                       sum 3, add to the shard  sum 2, add to the shard
//
// For sums that no layout changes (BinnedGradients) all gradients pass through slots, on every
// stage: each pass's gradient of a tensor is a summand of its own.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "worker_runtime/comm/collective.h"
#include "worker_runtime/device/arena.h"
#include "worker_runtime/parallel/linear.h"
#include "worker_runtime/shard/binned_gradients.h"
#include "worker_runtime/shard/bucket_sum.h"
#include "worker_runtime/shard/flat_shard.h"
#include "worker_runtime/shard/placement.h"
#include "worker_runtime/shard/stream_order.h"

namespace convene::worker {

// Of all buckets but bucket 0; with `binned` of that too. Not thread-safe. Borrows the references
// that its constructor takes.
class GradientShards {
 public:
  // Declares slots in `arena`, and the shard where `binned` is null: else the sums lie there.
  GradientShards(const Placement& placement, const FlatShard& shard, BucketSum& sum,
                 BinnedGradients* binned, Collective& dp_replicate, StreamOrder& order,
                 Arena& arena);

  // Where compute() puts the gradient of one tensor (into Placement::tensors) of a bucket: it
  // overwrites, unless the tensor's gradient of another pass still lies there, which with `binned`
  // is summed first. An error of a sum that this must queue first is that of the next Add.
  WeightGradient Gradient(int bucket, int tensor);
  // Calls of Gradient from now on belong to another pass.
  void BeginPass() { ++pass_; }

  // Adds to the shard what compute() has made of the bucket since the last call; `made`: the mark
  // behind it. `is_final`: nothing more comes in this step, and the shard is summed over the ranks
  // that keep a copy of it (with `binned`: BinnedGradients::Finish). Errors: the collective's.
  absl::Status Add(int bucket, int64_t made, bool is_final);

  // The step's gradients of a bucket's part, once compute() has waited for communication().
  absl::Span<float> Of(const ShardPart& part) const {
    return binned_ != nullptr ? binned_->Of(part)
                              : own_.span().subspan(part.shard_begin - first_, part.count);
  }

  // The next step's gradients overwrite this one's.
  void BeginStep() { has_sum_.assign(has_sum_.size(), false); }

 private:
  struct Slot {
    ArenaBlock<float> memory;
    CommunicationPoint summed;  // they are out of it
    bool is_of_first = false;   // of bucket 0 alone, which no other slot holds
    int bucket = -1;            // whose gradients lie here, not yet summed
    int64_t taken = 0;          // when it was taken last
  };

  Slot* Find(int bucket);
  Slot& Take(int bucket);
  void ZeroPadding(const Slot& slot);
  void ZeroWhatIsNotMade(const Slot& slot, Stream& stream);
  absl::Status Empty(Slot& slot, int64_t made);
  absl::Status AddToSums(int bucket, absl::Span<float> gradients, Stream& stream);

  const Placement& placement_;
  const FlatShard& shard_;
  BucketSum& sum_;
  BinnedGradients* const binned_;
  Collective& dp_replicate_;
  StreamOrder& order_;
  const int64_t first_;  // of the shard's elements that lie here
  const ArenaBlock<float> own_;
  std::vector<Slot> slots_;
  std::vector<bool> is_made_;     // by tensor: its gradient lies in a slot
  std::vector<bool> has_sum_;     // by bucket: the shard has gradients of this step
  std::vector<int64_t> made_in_;  // by tensor: the pass that made it
  int64_t pass_ = 0;
  int64_t takes_ = 0;
  absl::Status error_;  // of Gradient
};

}  // namespace convene::worker

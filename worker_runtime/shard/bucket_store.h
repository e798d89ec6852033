// Parameters and gradients of a rank, whole, in two flat buffers: gradients are reduced and
// parameters gathered bucket by bucket, beside the arithmetic. This rank updates a part of each
// bucket: ZeRO-1's cut (flat_shard.h). With several copies of the optimizer's state (hybrid
// sharding; one rank a copy is plain data parallelism, DDP) a bucket's part is then summed over the
// ranks that keep a copy of it, and all of them update it alike.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker_runtime/comm/collective.h"
#include "worker_runtime/device/arena.h"
#include "worker_runtime/device/device.h"
#include "worker_runtime/device/elements.h"
#include "worker_runtime/shard/copied_slices.h"
#include "worker_runtime/shard/flat_shard.h"
#include "worker_runtime/shard/placement.h"
#include "worker_runtime/shard/unit_store.h"

namespace convene::worker {

// Not thread-safe. Borrows the references that its constructor takes.
//
// Arithmetic is queued in device.compute(), collectives in device.communication():
//
//   compute        backward 2   backward 1   backward 0   ¦ sum  update 0  update 1   forward 0
//                            \            \            \   ^             \         \  ^
//   communication             reduce 2     reduce 1     reduce 0           gather 0 gather 1
//
// Every arrow is an event: a reduction begins after the pass that made its gradients, sums begin
// after all reductions, a gather begins after its update, and a unit's ops begin after the gather
// of its weights. All ranks have the same buckets and queue them in the same order, the last one
// first when reducing, the first one first when gathering; `communication` is one queue, so
// collectives of a rank run in that order, whichever communicator they are on. A collective that
// compute waits for never waits for an op that compute queues later, so there is no circle.
//
// Where dp is one rank there is no event and no collective.
class BucketStore final : public UnitStore {
 public:
  struct Options {
    DType dtype = DType::kFloat32;  // of the parameters
    // The type in which gradients are summed over dp: kFloat32, or kBFloat16 for half the traffic.
    DType reduce_dtype = DType::kFloat32;
    // Each tensor-parallel rank has the gradients of its own rows for the tensors that all of them
    // hold (ResidualRows): these are summed over tp. Else all ranks have the same gradients.
    bool sums_over_tp = false;
    // No reduction begins before FinishReducing (see BucketCountMin: stages but the first).
    bool reduces_at_end = false;
    // False: collectives run in compute() too, so nothing runs beside them.
    bool overlaps = true;
  };
  struct Groups {
    Collective& dp;            // the ranks that share one copy of the optimizer's state
    Collective& dp_gather;     // the same ranks
    Collective& dp_replicate;  // the ranks that keep a copy of this rank's shard
    Collective& tp;
    Collective* embedding = nullptr;  // the ends of the pipeline; null on the stages between them
  };

  // Declares its buffers in `arena`.
  BucketStore(Placement placement, const Options& options, const Groups& groups, Device& device,
              Arena& arena);

  // Call it once the arena is built.
  void Bind();

  absl::StatusOr<absl::Span<const void* const>> Acquire(int unit) override;
  WeightGradient Gradient(int unit, int tensor, bool is_first) override;
  absl::Status GradientsDone(int unit, bool is_last) override;

  // Adds up over the stages and over tp what they share, reduces all buckets that are not yet
  // reduced, and compute() waits: afterwards only this rank's parts of the gradients are
  // meaningful. Call it once a step. Errors: the collective's, those of reductions queued before
  // too.
  absl::Status FinishReducing();

  // Gathers a bucket, of which compute() has updated this rank's part, beside ops that are queued
  // from now on. Buckets come in order. Errors: the collective's.
  absl::Status Gather(size_t bucket);
  // After the last bucket of an update: the last stage gets the first one's copy of the tensor that
  // both hold. Errors: the collective's.
  absl::Status CopyToOtherEnd();

  // Everything that compute() is given from now on begins after all collectives queued by now, and
  // may use all parameters.
  void AwaitCommunication();

  DType dtype() const { return options_.dtype; }
  // Whether this rank counts its shard in global sums and writes it to checkpoints, for all ranks
  // that keep a copy of it.
  bool speaks_for_shard() const { return groups_.dp_replicate.rank() == 0; }
  const Placement& placement() const { return placement_; }
  const FlatShard& shard() const { return shard_; }
  // Whole flat buffers. Call AwaitCommunication before reading them.
  Elements parameters() const { return parameters_; }
  absl::Span<float> gradients() const { return gradients_; }

 private:
  // Ops that `later` is given from now on begin after all that `earlier` holds.
  void OrderBehind(Stream& earlier, Stream& later);
  // The tensor that this stage shares with the one at the pipeline's other end; null: none.
  const Placement::Tensor* SharedTensor() const;
  absl::Status SumOverBothEnds();
  absl::Status ShareOverTp();
  absl::Status ReduceFinalBuckets();
  absl::Status Reduce(const ShardPart& part);
  // Of a whole bucket; afterwards the part is the sum over all data-parallel ranks.
  absl::Status SumOverDp(Elements bucket, const ShardPart& part, Stream& stream);
  int dp_size() const { return groups_.dp.size() * groups_.dp_replicate.size(); }
  bool is_parallel() const { return dp_size() > 1; }

  const Placement placement_;
  const Options options_;
  const Groups groups_;
  Device& device_;
  Arena& arena_;
  Stream& communication_;  // where collectives over dp are queued
  const FlatShard shard_;
  const ArenaBlock<char> parameters_memory_;
  const ArenaBlock<float> gradients_memory_;
  const ArenaBlock<BFloat16> wire_memory_;
  CopiedSlices copied_slices_;

  const std::vector<int> bucket_units_;  // by bucket: how many units have tensors in it
  // How many of them have gradients in this step that are not final yet.
  std::vector<int> unfinished_units_;
  // Buckets [reduced_from_, all) of this step are queued for their reduction.
  size_t reduced_from_;
  // Buckets [0, awaited_) are gathered as far as compute() can see.
  int awaited_;

  // Set by Bind.
  Elements parameters_;
  absl::Span<float> gradients_;
  absl::Span<BFloat16> wire_;  // (the largest bucket) when reduce_dtype is kBFloat16
  std::vector<std::vector<const void*>> weights_;  // by unit and tensor
  std::unique_ptr<Event> order_;                   // recorded and waited for within one call
  std::vector<std::unique_ptr<Event>> gathered_;   // by bucket
  std::unique_ptr<Event> copied_;                  // CopyToOtherEnd
  bool awaits_copy_ = false;                       // compute() is not yet ordered behind it
};

}  // namespace convene::worker

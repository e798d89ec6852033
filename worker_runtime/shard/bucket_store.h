// Parameters and gradients of a rank: gradients are reduced and parameters gathered bucket by
// bucket, beside the arithmetic. This rank updates a part of each bucket: ZeRO's cut
// (flat_shard.h). With ZeRO-1 the buckets lie here whole, in two flat buffers. With ZeRO-2 the rank
// keeps only its part of the gradients of most buckets (gradient_shards.h), with ZeRO-3 also only
// its part of their parameters (parameter_shards.h). With several copies of the optimizer's state
// (hybrid sharding; one rank a copy is plain data parallelism, DDP) a bucket's part is then summed
// over the ranks that keep a copy of it, and all of them update it alike.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker_runtime/comm/collective.h"
#include "worker_runtime/device/arena.h"
#include "worker_runtime/device/device.h"
#include "worker_runtime/device/elements.h"
#include "worker_runtime/shard/binned_gradients.h"
#include "worker_runtime/shard/bucket_sum.h"
#include "worker_runtime/shard/copied_slices.h"
#include "worker_runtime/shard/flat_shard.h"
#include "worker_runtime/shard/gradient_shards.h"
#include "worker_runtime/shard/parameter_shards.h"
#include "worker_runtime/shard/placement.h"
#include "worker_runtime/shard/stream_order.h"
#include "worker_runtime/shard/unit_store.h"

namespace convene::worker {

// Not thread-safe. Borrows the references that its constructor takes.
//
// Arithmetic is queued in device.compute(), collectives in device.communication():
//
//   compute        backward 2   backward 1   backward 0   ¦ sum  update 0  update 1   forward 0
//                            \            \            \   ^             \         \  ^
//   communication             reduce 2     reduce 1     reduce 0           gather 0 gather 1
//                             squares 2    squares 1
//
// Every arrow is an event: a reduction begins after the pass that made its gradients, sums begin
// after all reductions, a gather begins after its update, and a unit's ops begin after the gather
// of its weights. That is a step with whole buckets on a CPU. On a GPU the updates stand in
// communication() too, beside the next step's passes:
//
//   compute        backward 0   ¦ sum   forward 0    forward 1
//                            \   ^   \  ^            ^
//   communication             reduce 0  update 0  gather 0  update 1  gather 1
//
// There a unit's ops also wait for its update where nothing is gathered, and so come after the
// updates of all units before it, whose gradients may then be overwritten (IdleGradients).
// All ranks have the same buckets and queue them
// in the same order, the last one first when reducing, the first one first when gathering;
// `communication` is one queue, so collectives of a rank run in that order, whichever communicator
// they are on. A collective that compute waits for never waits for an op that compute queues later,
// so there is no circle.
//
// Where dp is one rank with whole buckets there is no collective, and an event for updates alone.
class BucketStore final : public UnitStore {
 public:
  struct Options {
    DType dtype = DType::kFloat32;  // of the parameters
    // The type in which gradients are summed over dp: kFloat32, or kBFloat16 for half the traffic.
    DType reduce_dtype = DType::kFloat32;
    // Above 0: gradients are summed so that no layout changes the bits (BinnedGradients), of so
    // many summands an element at most. REQUIRES: a bucket a unit, and fp32 sums.
    int64_t binned_summands = 0;
    // Each tensor-parallel rank has the gradients of its own rows for the tensors that all of them
    // hold (ResidualRows): these are summed over tp. Else all ranks have the same gradients.
    bool sums_over_tp = false;
    // No reduction of a whole bucket begins before FinishReducing: on stages but the first, as in
    // Megatron. Such a stage reduces while the stages before it still run their last backward pass;
    // collectives beside its own would slow that pass down, and all stages before it wait for the
    // result.
    bool reduces_at_end = false;
    // Of all buckets but the first this rank keeps its part alone. REQUIRES: a bucket a unit
    // (kUnitBuckets), and sharded gradients where parameters are sharded.
    bool shards_gradients = false;
    bool shards_parameters = false;
    bool reshards_after_forward = true;  // ParameterShards::Options::reshards
    // False: collectives run in compute() too, so nothing runs beside them.
    bool overlaps = true;
    // On a GPU updates run beside what comes after them (UpdateStream). False where passes cannot
    // wait for a bucket.
    bool updates_beside = true;
    // Each unit has one pass a step, so its gradients lie idle until its backward pass.
    bool one_pass = false;
    // The parameters never change: there are no gradients, and no updates after the first weights.
    bool is_frozen = false;
  };
  struct Groups {
    Collective& dp;            // the ranks that share one copy of the optimizer's state
    Collective& dp_gather;     // the same ranks
    Collective& dp_replicate;  // the ranks that keep a copy of this rank's shard
    Collective& tp;
    Collective* embedding = nullptr;  // the ends of the pipeline; null on the stages between them
  };

  // Declares its buffers in `arena`, and shards of parameters in `parameter_arena`.
  BucketStore(Placement placement, const Options& options, const Groups& groups, Device& device,
              Arena& arena, Arena& parameter_arena);

  absl::StatusOr<absl::Span<const void* const>> Acquire(int unit) override;
  void Release(int unit) override;
  absl::Status Prefetch(int unit) override;
  WeightGradient Gradient(int unit, int tensor, bool is_first) override;
  ArenaBlock<float> IdleGradients(int unit) const override;
  absl::Status GradientsDone(int unit, bool is_last) override;

  // Whether the bucket's gradients get their last change when its own reduction ends, and no later
  // sum over stages or over tp touches them. Bucket 0 has tensors of every unit, and is never so.
  bool IsFinalWhenReduced(size_t bucket) const;
  // Of those buckets: `call` is called once a step behind the reduction, which may be during the
  // backward pass, to queue ops that read this rank's part of the gradients, in `stream`: compute()
  // where nothing is reduced, else communication(). No ops of compute() wait for them before the
  // next FinishReducing.
  using WhenReduced = std::function<void(const ShardPart& part, Stream& stream)>;
  void SetWhenReduced(WhenReduced call) { when_reduced_ = std::move(call); }

  // Adds up over the stages and over tp what they share, reduces all buckets that are not yet
  // reduced, and compute() waits: afterwards only this rank's parts of the gradients are
  // meaningful. Call it once a step. Errors: the collective's, those of reductions queued before
  // too.
  absl::Status FinishReducing();

  // Where the device's update of all buckets is to be queued, behind all that compute() holds:
  // compute(), or communication() beside what compute() is given from now on.
  Stream& UpdateStream();
  // `stream`, UpdateStream's or compute(), has updated this rank's part of the bucket. A whole one
  // is gathered beside ops that are queued from now on. Buckets come in order. Errors: the
  // collective's.
  absl::Status Updated(size_t bucket, const Stream& stream);
  // The same where the host has made the update: copies `weights` to this rank's part of the
  // bucket, unless they are that part already. Where a gather follows, the copy is queued in
  // communication(), beside ops that are queued from now on; else in compute(), before them. The
  // caller must not change `weights` until compute() has come to the next FinishReducing.
  absl::Status Load(size_t bucket, ConstElements weights);

  // The host begins to update all buckets, in order, beside what comes now. `publish` waits for a
  // bucket's update and calls Load. The store calls it once for each bucket, in order, as soon as a
  // call below or a unit (Acquire) needs the bucket; so every rank gathers at the same place among
  // its collectives, however long its host takes. Prefetch passes over a bucket that is not yet
  // published. REQUIRES: FinishUpdate has ended the update before.
  void BeginUpdate(std::function<absl::Status(size_t bucket)> publish);
  // All buckets are published. Errors: `publish`'s; then it may be called again.
  absl::Status FinishUpdate() { return FinishUpdate(shard_.parts.size() - 1); }
  // After the last bucket of an update: the last stage gets the first one's copy of the tensor that
  // both hold. Errors: the collective's.
  absl::Status CopyToOtherEnd();

  // Everything that compute() is given from now on begins after all collectives and updates queued
  // by now, and may use all parameters that lie here, after FinishUpdate.
  void AwaitCommunication();

  // This rank's part of a bucket's parameters, and of the step's gradients after FinishReducing.
  Elements ParametersOf(const ShardPart& part) const {
    return AreSharded(parameter_shards_, part.bucket)
               ? parameter_shards_->Of(part)
               : parameters().Slice(part.flat_begin, part.count);
  }
  absl::Span<float> GradientsOf(const ShardPart& part) const {
    return InSlots(part.bucket) ? gradient_shards_->Of(part)
                                : gradients().subspan(part.flat_begin, part.count);
  }

  const Groups& groups() const { return groups_; }
  DType dtype() const { return options_.dtype; }
  bool is_binned() const { return binned_.has_value(); }
  // Whether this rank counts its shard in global sums and writes it to checkpoints, for all ranks
  // that keep a copy of it.
  bool speaks_for_shard() const { return groups_.dp_replicate.rank() == 0; }
  const Placement& placement() const { return placement_; }
  const FlatShard& shard() const { return shard_; }
  // Whether the part's parameters are this rank's shard, and not a piece of a whole bucket.
  bool HoldsShardOf(const ShardPart& part) const {
    return AreSharded(parameter_shards_, part.bucket);
  }
  // The flat buffers, as far as buckets are whole. Call FinishUpdate and AwaitCommunication before
  // reading them.
  Elements parameters() const {
    return {At(parameters_), parameters_.size() / SizeOf(dtype()), dtype()};
  }
  absl::Span<float> gradients() const { return gradients_.span(); }

 private:
  // Whether the bucket's parameters, or gradients, are not in a flat buffer.
  template <typename Shards>
  static bool AreSharded(const std::optional<Shards>& shards, const ParameterBucket& bucket) {
    return shards.has_value() && bucket.begin > 0;
  }
  // Whether the bucket's gradients are made in slots.
  bool InSlots(const ParameterBucket& bucket) const {
    return AreSharded(gradient_shards_, bucket) || binned_.has_value();
  }
  // Elements of a flat buffer that lie here whole.
  int64_t WholeCount(bool is_sharded) const {
    return is_sharded ? placement_.buckets.front().end() : placement_.flat_count;
  }
  // The tensor that this stage shares with the one at the pipeline's other end; null: none.
  const Placement::Tensor* SharedTensor() const;
  absl::Status SumOverBothEnds();
  void ZeroPadding(int bucket);
  void Reduced(const ShardPart& part, Stream& stream);
  absl::Status ShareOverTp();
  absl::Status ReduceFinalBuckets();
  absl::Status Reduce(const ShardPart& part);
  // Buckets up to this one are published.
  absl::Status FinishUpdate(size_t bucket);
  // The part has changed, by ops up to `mark`.
  absl::Status Changed(size_t bucket, int64_t mark);
  int dp_size() const { return groups_.dp.size() * groups_.dp_replicate.size(); }
  // Whether the device's updates are queued in communication().
  bool updates_beside() const;
  // Whether communication() has collectives.
  bool is_parallel() const { return dp_size() > 1 || gradient_shards_.has_value(); }

  const Placement placement_;
  const Options options_;
  const Groups groups_;
  Device& device_;
  const FlatShard shard_;
  const ArenaBlock<char> parameters_;
  const ArenaBlock<float> gradients_;
  StreamOrder order_;
  BucketSum sum_;
  CopiedSlices copied_slices_;
  std::optional<BinnedGradients> binned_;
  // Of all buckets but the first, which they have too where binned_ is.
  std::optional<GradientShards> gradient_shards_;
  std::optional<ParameterShards> parameter_shards_;  // of all buckets but the first

  const std::vector<int> bucket_units_;  // by bucket: how many units have tensors in it
  // How many of them have gradients in this step that are not final yet.
  std::vector<int> unfinished_units_;
  // Whole buckets from this one on are queued for their reduction in this step.
  size_t reduced_from_;
  int64_t made_ = 0;  // the mark behind the last gradients

  std::vector<std::vector<const void*>> weights_;  // by unit and tensor, as Acquire found them
  std::vector<CommunicationPoint> gathered_;       // by bucket, of the whole ones; or updated
  CommunicationPoint copied_;                      // CopyToOtherEnd, on the end that gets the copy

  WhenReduced when_reduced_;  // null: nobody asks
  std::function<absl::Status(size_t bucket)> publish_;
  size_t published_;  // buckets from this one on are not
};

}  // namespace convene::worker

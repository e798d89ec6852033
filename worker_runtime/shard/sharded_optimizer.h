// ZeRO: every data-parallel rank keeps the optimizer's state of its shard alone (fp32 master
// weights and both moments), updates the shard, and has the parameters gathered back bucket by
// bucket, or where they are sharded too when they are needed (BucketStore).
#pragma once

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "worker_runtime/checkpoint/checkpoint.h"
#include "worker_runtime/device/arena.h"
#include "worker_runtime/device/device.h"
#include "worker_runtime/device/elements.h"
#include "worker_runtime/ops/adamw.h"
#include "worker_runtime/shard/bucket_store.h"
#include "worker_runtime/shard/flat_shard.h"

namespace convene::worker {

// Not thread-safe. Borrows the references that its constructor takes.
class ShardedOptimizer {
 public:
  struct Options {
    // Checkpoints pass through a copy of the shard in `staging`: 12 bytes an element. Without it a
    // GPU can write and read no checkpoint; a CPU needs no copy.
    bool copies_for_checkpoints = false;
    // The state lies in host memory, and the host updates it, a part beside the copies of the
    // others: offload (Ren et al. 2021, ZeRO-Offload, section 4). Checkpoints need no copy then.
    bool offloads = false;
    absl::Duration timeout = absl::Minutes(10);  // of each wait for the device
  };

  // Declares its state in `arena`, which starts it as zeros, and the copy in `staging`, host memory
  // into and from which the device copies asynchronously; where it is offloaded, all of it in
  // `staging`. Where the store's parameters are kFloat32, and nothing is offloaded, they are the
  // master weights.
  ShardedOptimizer(BucketStore& store, const Options& options, Device& device, Arena& arena,
                   Arena& staging);

  // Call it once both arenas are built and the store is bound.
  void Bind();

  // Parameters [flat_begin, flat_begin + values.size()) on every rank that has them, from host
  // memory.
  void SetWeights(int64_t flat_begin, absl::Span<const float> values);

  // *sum (in the device's memory) += sum of squares of the reduced gradients in this shard, of the
  // parameters this rank owns: the ranks' sums add up to the global norm's square, each parameter
  // counted once.
  void SumOwnedSquares(double* sum);

  // AdamW on the shard; factors and control in the device's memory. Each bucket's parameters are
  // gathered as soon as they are updated. Where the state is offloaded, it waits for the gradients.
  // Errors: the collective's; where it waits the device's, and DeadlineExceeded.
  absl::Status Update(const AdamWFactors* factors, const StepControl* control);

  // This shard for a checkpoint, in host memory: master weights and both moments, of owned
  // parameters only. Waits for what is queued. Valid until the next step. Errors: the device's;
  // DeadlineExceeded; FailedPrecondition on a GPU without copies_for_checkpoints.
  absl::StatusOr<std::vector<PieceToWrite>> PiecesToWrite();

  // Pieces of all parameters, which the caller fills: this rank needs them to go on. Then call
  // FinishRead, or start again. Errors: as PiecesToWrite.
  absl::StatusOr<std::vector<PieceToRead>> PiecesToRead();
  // The filled pieces become the state, and every rank gets all parameters.
  // Errors: the collective's.
  absl::Status FinishRead();

 private:
  // The state in host memory: the copy, or on a CPU the arena's own.
  struct HostState {
    float* master = nullptr;  // null: the parameters themselves
    float* first_moment = nullptr;
    float* second_moment = nullptr;
  };

  // `copies_it`: the copy becomes the state as it is now; else it is about to be filled.
  absl::StatusOr<HostState> State(bool copies_it);
  enum class CopyTo { kHost, kDevice };
  void QueueCopies(CopyTo direction);
  template <typename Piece>
  std::vector<Piece> Pieces(const HostState& state, bool owned_only) const;
  float* MasterOf(const ShardPart& part) const;
  bool copies() const { return options_.copies_for_checkpoints && !options_.offloads; }
  bool has_masters() const { return options_.offloads || store_.dtype() != DType::kFloat32; }
  // The gradients of a part, and the place for its new weights, for the update.
  const float* GradientsOf(const ShardPart& part) const;
  Elements WeightsOf(const ShardPart& part) const;
  // Gradients, factors and control on their way to the host.
  void QueueForHost(const AdamWFactors* factors, const StepControl* control);
  // The part's new weights become its parameters.
  absl::Status Publish(size_t part);

  BucketStore& store_;
  const Options options_;
  Device& device_;
  const FlatShard& shard_;          // the store's
  const ArenaBlock<float> master_;  // (shard_.count); empty where the parameters are the masters
  const ArenaBlock<float> first_moment_, second_moment_;  // (shard_.count)
  const ArenaBlock<uint8_t> flags_;
  const ArenaBlock<char> workspace_;
  const ArenaBlock<float> copy_;  // (3, shard_.count): masters, first and second moments
  // Where the state is offloaded: (shard_.count) each, one, one.
  const ArenaBlock<float> host_gradients_;
  const ArenaBlock<BFloat16> host_weights_;  // of parameters in bf16
  const ArenaBlock<AdamWFactors> host_factors_;
  const ArenaBlock<StepControl> host_control_;
  std::vector<uint8_t> host_flags_;              // set by Bind
  std::vector<std::unique_ptr<Event>> on_host_;  // by part: its gradients are copied
};

}  // namespace convene::worker

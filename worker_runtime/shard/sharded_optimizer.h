// ZeRO-1: every data-parallel rank keeps the optimizer's state of its shard alone (fp32 master
// weights and both moments), reduces gradients into it, updates it, and gathers the parameters
// back; bucket by bucket, beside the arithmetic.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "worker_runtime/checkpoint/checkpoint.h"
#include "worker_runtime/comm/collective.h"
#include "worker_runtime/device/arena.h"
#include "worker_runtime/device/device.h"
#include "worker_runtime/device/elements.h"
#include "worker_runtime/model/parameters.h"
#include "worker_runtime/ops/adamw.h"
#include "worker_runtime/shard/flat_shard.h"

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
// after all reductions, a gather begins after its update, and a reader of parameters calls
// AwaitParameters first. All ranks have the same buckets and queue them in the same order, the last
// one first when reducing, the first one first when gathering; `communication` is one queue, so
// collectives of a rank run in that order, whichever of the two communicators they are on. A
// collective that compute waits for never waits for an op that compute queues later, so there is no
// circle.
//
// Where dp is one rank there is no event and no collective, on a CPU events are nothing.
class ShardedOptimizer {
 public:
  struct Options {
    DType dtype =
        DType::kFloat32;  // of the parameters: kFloat32 (they are the masters) or kBFloat16
    // The type in which gradients are summed over dp: kFloat32, or kBFloat16 for half the traffic.
    DType reduce_dtype = DType::kFloat32;
    // Checkpoints pass through a copy of the shard in `staging`: 12 bytes an element. Without it a
    // GPU can write and read no checkpoint; a CPU needs no copy.
    bool copies_for_checkpoints = false;
    absl::Duration timeout = absl::Minutes(10);  // of each wait for the device
  };

  // Declares its state in `arena`, which starts it as zeros, and the copy in `staging`, host memory
  // into and from which the device copies asynchronously.
  ShardedOptimizer(const ParameterTable& table, const Options& options, Collective& dp,
                   Collective& dp_gather, Device& device, Arena& arena, Arena& staging);

  // Call it once both arenas are built. Both arguments are whole flat buffers (table.flat_count),
  // parameters of options.dtype.
  void Bind(Elements parameters, absl::Span<float> gradients);

  // Parameters [flat_begin, flat_begin + values.size()) on every rank that has them, from host
  // memory.
  void SetWeights(int64_t flat_begin, absl::Span<const float> values);

  // Says that gradients [flat_begin, table.flat_count) are final once compute() has done its queued
  // ops. Every whole bucket of them is summed over dp, beside ops that are queued from now on;
  // these must not touch the gradients. No later call of a step comes with a larger number. Errors:
  // the collective's.
  absl::Status ReduceGradientsFrom(int64_t flat_begin);
  // Reduces all other gradients too, and compute() waits: afterwards only this rank's parts of the
  // gradients are meaningful. Call it once a step. Errors: the collective's.
  absl::Status FinishReducing();

  // The norms' gradients that this rank updates: the same part on all tensor-parallel ranks of its
  // data-parallel place. Meaningful after FinishReducing.
  absl::Span<float> ReducedNormGradients() const;

  // *sum (in the device's memory) += sum of squares of the reduced gradients in this shard, of the
  // parameters this rank owns: the ranks' sums add up to the global norm's square, each parameter
  // counted once.
  void SumOwnedSquares(double* sum);

  // AdamW on the shard; factors and control in the device's memory. Each bucket's parameters are
  // gathered as soon as they are updated, beside ops that are queued from now on. Errors: the
  // collective's.
  absl::Status Update(const AdamWFactors* factors, const StepControl* control);

  // Ops that compute() is given from now on may use parameters [0, flat_end): they begin after the
  // gathers. Every other reader of parameters makes this call first; this class's own functions
  // wait by themselves.
  void AwaitParameters(int64_t flat_end);

  // This shard for a checkpoint, in host memory: master weights and both moments, of owned
  // parameters only. Waits for what is queued. Valid until the next step. Errors: the device's;
  // DeadlineExceeded; FailedPrecondition on a GPU without copies_for_checkpoints.
  absl::StatusOr<std::vector<PieceToWrite>> PiecesToWrite();

  // Pieces of all parameters, which the caller fills: this rank needs them to go on. Then call
  // FinishRead, or start again. Errors: as PiecesToWrite.
  absl::StatusOr<std::vector<PieceToRead>> PiecesToRead();
  // The filled pieces become the state, and every rank gets all parameters (AwaitParameters).
  // Errors: the collective's.
  absl::Status FinishRead();

 private:
  // The state in host memory: the copy, or on a CPU the arena's own.
  struct HostState {
    float* master = nullptr;
    // Where a segment lies in `master`: the masters may be the parameters themselves.
    int64_t ShardSegment::*master_place = &ShardSegment::shard_begin;
    float* first_moment = nullptr;
    float* second_moment = nullptr;
  };

  // `copies_it`: the copy becomes the state as it is now; else it is about to be filled.
  absl::StatusOr<HostState> State(bool copies_it);
  enum class CopyTo { kHost, kDevice };
  void QueueCopies(CopyTo direction);
  template <typename Piece>
  std::vector<Piece> Pieces(const HostState& state, bool owned_only) const;
  Elements ParametersOf(const ShardPart& part) const {
    return parameters_.Slice(part.flat_begin, part.count);
  }
  float* MasterOf(const ShardPart& part) const;
  bool has_masters() const { return options_.dtype != DType::kFloat32; }

  // Ops that `later` is given from now on begin after all that `earlier` holds.
  void OrderBehind(Stream& earlier, Stream& later);
  // compute() waits for all that communication() holds.
  void AwaitCommunication();
  absl::Status Reduce(const ShardPart& part);
  absl::Status Gather(size_t bucket);

  const ParameterTable& table_;
  const Options options_;
  Collective& dp_;
  Collective& dp_gather_;
  Device& device_;
  Arena& arena_;
  Arena& staging_;
  const FlatShard shard_;
  const size_t workspace_bytes_;
  const ArenaBlock<float> master_memory_, first_moment_memory_, second_moment_memory_;
  const ArenaBlock<BFloat16> wire_memory_;
  const ArenaBlock<uint8_t> flags_memory_;
  const ArenaBlock<char> workspace_memory_;
  const ArenaBlock<float> copy_memory_;

  // Buckets [reduced_from_, all) of this step are queued for their reduction.
  size_t reduced_from_;
  // Buckets [0, awaited_) are gathered as far as compute() can see.
  size_t awaited_;

  // Set by Bind.
  Elements parameters_;
  absl::Span<float> gradients_;
  float* master_ = nullptr;         // (shard_.count); null where the parameters are the masters
  float* first_moment_ = nullptr;   // (shard_.count)
  float* second_moment_ = nullptr;  // (shard_.count)
  absl::Span<BFloat16> wire_;       // (the largest bucket) when reduce_dtype is kBFloat16
  const uint8_t* flags_ = nullptr;
  Workspace workspace_;
  std::unique_ptr<Event> order_;                  // recorded and waited for within one call
  std::vector<std::unique_ptr<Event>> gathered_;  // by bucket

  float* copy_ = nullptr;  // (3, shard_.count): masters, first and second moments
};

}  // namespace convene::worker

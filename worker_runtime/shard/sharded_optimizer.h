// ZeRO-1: every data-parallel rank keeps the optimizer's state of its shard alone (fp32 master
// weights and both moments), reduces gradients into it, updates it, and gathers the parameters
// back.
#pragma once

#include <optional>
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

// Not thread-safe. Borrows what its constructor takes. Work is queued in device.compute().
class ShardedOptimizer {
 public:
  struct Options {
    DType dtype =
        DType::kFloat32;  // of the parameters: kFloat32 (they are the masters) or kBFloat16
    // In which gradients are summed over dp: kFloat32, or kBFloat16 for half the traffic.
    DType reduce_dtype = DType::kFloat32;
    absl::Duration timeout = absl::Minutes(10);  // of each wait for the device
  };

  // Declares its state in `arena`, which starts it as zeros.
  ShardedOptimizer(const ParameterTable& table, const Options& options, Collective& dp,
                   Collective& dp_gather, Device& device, Arena& arena);

  // Once the arena is built. Both are whole flat buffers (table.flat_count), parameters of
  // options.dtype.
  void Bind(Elements parameters, absl::Span<float> gradients);

  // Parameters [flat_begin, flat_begin + values.size()) on every rank that has them, from host
  // memory.
  void SetWeights(int64_t flat_begin, absl::Span<const float> values);

  // Sums the gradients over dp; afterwards only this rank's shard of them is meaningful. Errors:
  // the collective's.
  absl::Status ReduceGradients();

  // *sum (in the device's memory) = sum of squares of the reduced gradients in this shard, of the
  // parameters this rank owns: the ranks' sums add up to the global norm's square, each parameter
  // counted once.
  void SumOwnedSquares(double* sum);

  // AdamW on the shard. Both in the device's memory.
  void Update(const AdamWFactors* factors, const StepControl* control);

  // After Update: every rank has all parameters again. Errors: the collective's.
  absl::Status GatherParameters();

  // This shard for a checkpoint, in host memory: master weights and both moments, of owned
  // parameters only. Waits for what is queued. On a GPU the first call allocates a copy of the
  // shard. Valid until the next step. Errors: the device's; ResourceExhausted; DeadlineExceeded.
  absl::StatusOr<std::vector<PieceToWrite>> PiecesToWrite();

  // The same of all parameters, to be filled: what this rank needs to go on. Then FinishRead, or
  // all of it again. Errors: as PiecesToWrite.
  absl::StatusOr<std::vector<PieceToRead>> PiecesToRead();
  // What was filled becomes the state, and every rank has all parameters. Errors: the collective's.
  absl::Status FinishRead();

 private:
  // The state in host memory: the arena's own on the CPU, a copy on a GPU.
  struct HostState {
    float* master = nullptr;
    float* first_moment = nullptr;
    float* second_moment = nullptr;
  };

  absl::StatusOr<HostState> State(bool is_wanted);
  template <typename Piece>
  std::vector<Piece> Pieces(const HostState& state, bool owned_only) const;
  Elements ParameterShard() const { return parameters_.Slice(shard_.begin, shard_.count); }
  bool has_masters() const { return options_.dtype != DType::kFloat32; }

  const ParameterTable& table_;
  const Options options_;
  Collective& dp_;
  Collective& dp_gather_;
  Device& device_;
  Arena& arena_;
  const FlatShard shard_;
  const size_t workspace_bytes_;
  const ArenaBlock<float> master_memory_, first_moment_memory_, second_moment_memory_;
  const ArenaBlock<BFloat16> reduce_memory_;
  const ArenaBlock<uint8_t> flags_memory_;
  const ArenaBlock<char> workspace_memory_;

  // Set by Bind.
  Elements parameters_;
  absl::Span<float> gradients_;
  float* master_ = nullptr;         // (shard_.count)
  float* first_moment_ = nullptr;   // (shard_.count)
  float* second_moment_ = nullptr;  // (shard_.count)
  absl::Span<BFloat16> reduced_;    // (flat_count) when reduce_dtype is kBFloat16
  const uint8_t* flags_ = nullptr;
  Workspace workspace_;

  // On a GPU: made by the first checkpoint.
  std::optional<Arena> host_arena_;
  ArenaBlock<float> host_memory_[3];
};

}  // namespace convene::worker

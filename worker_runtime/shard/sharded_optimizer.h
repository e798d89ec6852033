// ZeRO-1: every data-parallel rank keeps the optimizer's state of its shard alone, reduces
// gradients into it, updates it, and gathers the parameters back.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "worker_runtime/checkpoint/checkpoint.h"
#include "worker_runtime/comm/collective.h"
#include "worker_runtime/device/arena.h"
#include "worker_runtime/device/stream.h"
#include "worker_runtime/model/parameters.h"
#include "worker_runtime/ops/adamw.h"
#include "worker_runtime/shard/flat_shard.h"

namespace convene::worker {

// Not thread-safe. Borrows what its constructor takes.
class ShardedOptimizer {
 public:
  // Declares the moments in `arena`, which starts them as zeros.
  ShardedOptimizer(const ParameterTable& table, Collective& dp, Arena& arena);

  // Once the arena is built. Both spans are whole flat buffers (table.flat_count).
  void Bind(absl::Span<float> parameters, absl::Span<float> gradients);

  // Sums the gradients over dp; afterwards only this rank's shard of them is meaningful. Errors:
  // the collective's.
  absl::Status ReduceGradients(Stream& stream);

  // Sum of squares of the reduced gradients in this shard, of the parameters this rank owns: the
  // ranks' sums add up to the global norm's square, each parameter counted once.
  double OwnedSumOfSquares(Stream& stream) const;

  // AdamW on the shard. `parameters.weight_decay` applies to decayed parameters only.
  void Update(const AdamWParameters& parameters, Stream& stream);

  // After Update (or after a shard was loaded): every rank has all parameters again. Errors: the
  // collective's.
  absl::Status GatherParameters(Stream& stream);

  // This shard for a checkpoint: weights and both moments, of owned parameters only.
  std::vector<PieceToWrite> PiecesToWrite() const;
  // The same of all parameters: what this rank needs to go on.
  std::vector<PieceToRead> PiecesToRead();

 private:
  template <typename Piece>
  std::vector<Piece> Pieces(bool owned_only) const;

  const ParameterTable& table_;
  Collective& dp_;
  Arena& arena_;
  const FlatShard shard_;
  const ArenaBlock<float> first_moment_memory_;
  const ArenaBlock<float> second_moment_memory_;

  // Set by Bind.
  absl::Span<float> parameters_;
  absl::Span<float> gradients_;
  float* first_moment_ = nullptr;   // (shard_.count)
  float* second_moment_ = nullptr;  // (shard_.count)
};

}  // namespace convene::worker

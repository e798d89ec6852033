// One transformer block, this rank's tensor-parallel slice: forward, and backward written out.
//
//   input ─ norm1 ─ mixer ─(+input)─ middle ─ norm2 ─ feed-forward ─ delta
//
// The next unit's input is middle + delta, added within its first norm.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "worker_runtime/device/arena.h"
#include "worker_runtime/device/dtype.h"
#include "worker_runtime/model/block_linears.h"
#include "worker_runtime/model/block_part.h"
#include "worker_runtime/model/config.h"
#include "worker_runtime/model/dense_feed_forward.h"
#include "worker_runtime/model/expert_feed_forward.h"
#include "worker_runtime/model/grouped_query_mixer.h"
#include "worker_runtime/model/latent_mixer.h"
#include "worker_runtime/model/unit.h"
#include "worker_runtime/parallel/norm.h"

namespace convene::worker {

// The block's own tensors that the forward pass leaves for the backward pass. The comment beside a
// tensor is its width: it has rows * width elements where it says so, else residual_rows * width.
template <typename T>
struct ResidualMemory {
  ArenaBlock<T> norm1;          // hidden, of all rows
  ArenaBlock<float> norm1_rms;  // NormStatistics
  ArenaBlock<T> middle;         // hidden
  ArenaBlock<T> norm2;          // hidden, of all rows
  ArenaBlock<float> norm2_rms;  // NormStatistics
  // The parts' outputs before the norms behind them, and these norms' statistics, where they are.
  ArenaBlock<T> mixed;          // hidden
  ArenaBlock<float> mixed_rms;  // NormStatistics
  ArenaBlock<T> fed;            // hidden
  ArenaBlock<float> fed_rms;    // NormStatistics
};

template <typename T>
struct BlockMemory {
  ResidualMemory<T> residual;
  MixerMemory<T> mixer;
  DenseMemory<T> feed_forward;
  ExpertMemory<T> experts;
};

// Tensors that the input half of a backward pass leaves for the weight half.
template <typename T>
struct BlockDeferred {
  ResidualMemory<T> factors;  // the norms' outputs that are recomputed
  MixerDeferred<T> mixer;
  DenseDeferred<T> feed_forward;
};

// Declares the tensors that the backward pass computes again: one set for all blocks of a rank.
// Where rows are split, both norms' outputs share one place, as each is gathered right before its
// use.
template <typename T>
BlockMemory<T> DeclareRecomputed(const BlockShape& shape, const Recompute& recompute, Arena& arena);
// Declares the other tensors of a block, a set for each of `slots` microbatches. Blocks of two
// chunks of a rank may have the same sets: no slot is both chunks' at a time (schedule/lower.h).
template <typename T>
std::vector<BlockMemory<T>> DeclareSaved(const BlockShape& shape, const Recompute& recompute,
                                         const BlockMemory<T>& recomputed, int slots, Arena& arena);
// The same for what lies between the halves of a backward pass.
template <typename T>
std::vector<BlockDeferred<T>> DeclareDeferred(const BlockShape& shape, const Recompute& recompute,
                                              int slots, Arena& arena);

template <typename T>
class Block final : public Unit<T> {
 public:
  // `memory`: DeclareSaved's; `deferred`: DeclareDeferred's; `chunks`: of the rows (ChunkedRows).
  Block(const BlockShape& shape, const LayerAttention& layer, const Recompute& recompute,
        const std::vector<BlockMemory<T>>& memory, const std::vector<BlockDeferred<T>>& deferred,
        const BlockLinears<T>& linears, int chunks, Arena& staging);

  ScratchSizes scratch(DeviceKind device) const override;
  absl::Status Forward(const Pass<T>& pass, T* target, Flow<T>& flow) override;
  absl::Status Backward(const Pass<T>& pass, T* gradient) override;
  void BackwardWeight(const Pass<T>& pass) override;

 private:
  // A part with the norm before it.
  struct Branch {
    BlockPart<T>& part;
    Norm<T> norm;
    int norm_tensor;
    int norm_bias;
    const T* sum;  // that the norm takes
    T* x;          // the norm's output
    bool norm_again;
    bool part_again;
    int post_tensor;  // of the norm behind the part
    Norm<T> post_norm;
    const T* output;  // of the part, before that norm
  };

  ResidualMemory<T> MemoryOf(const Pass<T>& pass) const;
  Norm<T> NormOf(const Pass<T>& pass, int tensor, int bias, ArenaBlock<float> statistics) const {
    const bool is_pre = tensor == kAttentionNorm || tensor == kMlpNorm;
    return {.kind = is_pre && !s_.family->pre_norms ? NormKind::kNone : s_.family->norm,
            .columns = s_.hidden,
            .weight = pass.Weight(tensor),
            .bias = pass.Weight(bias),
            .epsilon = s_.norm_epsilon,
            .statistics = At(statistics)};
  }
  // What comes between a part's output, which may be on its way, and the residual stream, in the
  // own rows: a norm, or a factor. `kept`: NormDelta's.
  absl::Status Behind(const Pass<T>& pass, const Norm<T>& norm, T* kept, T* output) const;
  absl::Status ScaleBranch(const Pass<T>& pass, T* output) const;
  // From norm1's output to norm2's.
  absl::Status Middle(const Pass<T>& pass, const ResidualMemory<T>& a) const;
  absl::Status BranchBackward(const Pass<T>& pass, const Branch& branch, T* gradient,
                              absl::Span<T> spare) const;

  const BlockShape s_;
  const Recompute recompute_;
  std::vector<ResidualMemory<T>> memory_;   // by slot
  std::vector<ResidualMemory<T>> factors_;  // by deferred slot
  const BlockLinears<T> linears_;
  const std::unique_ptr<BlockPart<T>> mixer_;
  const std::unique_ptr<BlockPart<T>> feed_forward_;
};

}  // namespace convene::worker

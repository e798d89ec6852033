// One transformer block, this rank's tensor-parallel slice: forward, and backward written out.
//
//   input ─ norm1 ─ qkv ─ rope ─ attention ─ out ─(+input)─ middle ─ norm2 ─ gate_up ─ swiglu
//   ─ down ─ delta        the next unit's input is middle + delta, added within its first norm
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "worker_runtime/device/arena.h"
#include "worker_runtime/device/dtype.h"
#include "worker_runtime/model/block_float8.h"
#include "worker_runtime/model/config.h"
#include "worker_runtime/model/unit.h"
#include "worker_runtime/ops/attention.h"
#include "worker_runtime/parallel/linear.h"
#include "worker_runtime/parallel/norm.h"

namespace convene::worker {

// Local sizes of a block for one microbatch. rows = batch * sequence_length.
struct BlockShape {
  int batch = 0;
  int sequence_length = 0;  // tokens of a row on this rank (ContextCut::local_length)
  int residual_rows = 0;    // of the residual stream on this rank (ChunkedRows::own)
  int hidden = 0;
  int heads = 0;     // local
  int kv_heads = 0;  // local
  int head_size = 0;
  int ffn = 0;  // local
  float norm_epsilon = 0;
  bool deterministic = false;
  bool packed = false;  // rows hold several documents: Pass::documents.begin is given

  int rows() const { return batch * sequence_length; }
  int attention_width() const { return heads * head_size; }
  int qkv_width() const { return (heads + 2 * kv_heads) * head_size; }
  AttentionShape attention() const {
    return {batch, sequence_length, heads, kv_heads, head_size, deterministic, packed};
  }
};

// The product of one of kLinearTensors.
LinearShape LinearShapeOf(const BlockShape& shape, BlockTensor tensor);

// `sequence_parallel`: see ResidualRows.
BlockShape MakeBlockShape(const ModelConfig& config, int tp_size, bool sequence_parallel,
                          int micro_batch_size, int sequence_length, bool deterministic,
                          bool packed);

// Tensors that the forward pass leaves for the backward pass. The comment beside a tensor is its
// width: it has rows * width elements, but residual_rows * width where the width is `hidden` or 1.
template <typename T>
struct BlockMemory {
  ArenaBlock<T> norm1;            // hidden
  ArenaBlock<float> norm1_rms;    // 1
  ArenaBlock<T> qkv;              // qkv_width, as ContextAttention keeps it
  ArenaBlock<T> attention;        // attention_width
  ArenaBlock<float> log_sum_exp;  // heads
  ArenaBlock<T> middle;           // hidden
  ArenaBlock<T> norm2;            // hidden
  ArenaBlock<float> norm2_rms;    // 1
  ArenaBlock<T> gate_up;          // 2 ffn
  ArenaBlock<T> product;          // ffn
};

// Tensors that the input half of a backward pass leaves for the weight half, whose products then
// want nothing else: gradients of the outputs of linear layers, rows * width elements each.
//
// The products' other factors are saved activations, or lie here where the backward pass makes them
// again: the input half then makes them in this place. To make them once more in the weight half
// would cost a forward pass with its collectives where all is recomputed, which is more time than
// the bubble that halves are there to fill. The price is memory for as many microbatches as the
// schedule puts off, which are few (RankPlan::deferred).
template <typename T>
struct BlockDeferred {
  ArenaBlock<T> qkv;            // qkv_width
  ArenaBlock<T> attention_out;  // hidden
  ArenaBlock<T> gate_up;        // 2 ffn
  ArenaBlock<T> down;           // hidden
  BlockMemory<T> factors;       // those of norm1, attention, norm2 and product that are recomputed
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
  Block(const BlockShape& shape, const Recompute& recompute,
        const std::vector<BlockMemory<T>>& memory, const std::vector<BlockDeferred<T>>& deferred,
        const BlockFloat8& float8, int chunks)
      : s_(shape),
        recompute_(recompute),
        pipes_gradient_(chunks > 1 && shape.residual_rows < shape.rows()),
        memory_(memory),
        deferred_(deferred),
        float8_(float8) {}

  ScratchSizes scratch(DeviceKind device) const override;
  absl::Status Forward(const Pass<T>& pass, T* target, Flow<T>& flow) override;
  absl::Status Backward(const Pass<T>& pass, T* gradient) override;
  void BackwardWeight(const Pass<T>& pass) override;

 private:
  // The tensors' places in this pass.
  BlockMemory<T> MemoryOf(const Pass<T>& pass) const;
  // Where this pass puts the gradient of a linear layer's weight; nowhere in an input half.
  WeightGradient ProductGradient(const Pass<T>& pass, int tensor) const {
    return pass.deferred < 0 ? pass.LaterGradient(tensor) : WeightGradient{};
  }
  Norm<T> NormOf(const Pass<T>& pass, int tensor, ArenaBlock<float> rms) const {
    return {s_.hidden, pass.Weight(tensor), s_.norm_epsilon, At(rms)};
  }
  absl::Status FirstNormAgain(const Pass<T>& pass, const BlockMemory<T>& a) const;
  absl::Status SecondNormAgain(const Pass<T>& pass, const BlockMemory<T>& a) const;
  // From norm1 to attention.
  absl::Status Attention(const Pass<T>& pass, const BlockMemory<T>& a) const;
  // From attention to norm2.
  absl::Status Middle(const Pass<T>& pass, const BlockMemory<T>& a) const;
  absl::Status GateUp(const Pass<T>& pass, const BlockMemory<T>& a) const;
  absl::Status MlpBackward(const Pass<T>& pass, const BlockMemory<T>& a, T* gradient) const;
  absl::Status AttentionBranchBackward(const Pass<T>& pass, const BlockMemory<T>& a,
                                       T* gradient) const;
  void Keep(const Pass<T>& pass, const T* gradient, ArenaBlock<T> place) const;

  const BlockShape s_;
  const Recompute recompute_;
  // The MLP's output gradient is gathered chunk by chunk beside the product that takes it. Then
  // that product comes before its weight's gradient, and cannot take the place of the latter's x.
  const bool pipes_gradient_;
  const std::vector<BlockMemory<T>> memory_;      // by slot
  const std::vector<BlockDeferred<T>> deferred_;  // by slot
  const BlockFloat8 float8_;
};

}  // namespace convene::worker

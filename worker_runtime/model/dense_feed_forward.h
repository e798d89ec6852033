// The feed-forward network of a dense block, this rank's slice of its inner width.
//
//   x ─ gate_up ─ activation ─ down ─ y
//
// Shared experts may have a gate: what a token gets of them, by a logit of its own. It stands
// before the product with `down` as well as behind it, and there its gradient needs no output.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "worker_runtime/device/arena.h"
#include "worker_runtime/model/block_linears.h"
#include "worker_runtime/model/block_part.h"

namespace convene::worker {

// Tensors that the forward pass leaves for the backward pass. The comment beside a tensor is its
// width: it has rows * width elements.
template <typename T>
struct DenseMemory {
  ArenaBlock<T> gate_up;  // gate_up_width
  ArenaBlock<T> product;  // ffn
  // With a gate, of each row: its logit, and that one's gradient, for a moment.
  ArenaBlock<float> gate_logits;
  ArenaBlock<T> gate_gradient;
};
template <typename T>
void DeclareDense(const BlockShape& shape, const Recompute& recompute, const SetDeclarer& declare,
                  DenseMemory<T>& memory);

// The input half of a backward pass leaves this for the weight half.
template <typename T>
struct DenseDeferred {
  ArenaBlock<T> gate_up;   // gate_up_width: the gradient
  ArenaBlock<T> down;      // hidden: the gradient
  DenseMemory<T> factors;  // what is recomputed of these
};

template <typename T>
class DenseFeedForward final : public BlockPart<T> {
 public:
  // By slot and by deferred slot; `chunks`: of the rows (ChunkedRows). Borrows `linears`.
  DenseFeedForward(const BlockShape& shape, const Recompute& recompute,
                   std::vector<DenseMemory<T>> memory, std::vector<DenseDeferred<T>> deferred,
                   const BlockLinears<T>& linears, int chunks);

  ScratchSizes scratch(DeviceKind device, int64_t spare) const override;
  absl::Status Forward(const Pass<T>& pass, const T* x, T* y) override;
  bool starts_from_input() const override { return recompute_.mlp; }
  absl::Status Again(const Pass<T>& pass, const T* x) override;
  absl::Status Backward(const Pass<T>& pass, const T* x, const T* dy, T* dx,
                        absl::Span<T> spare) override;
  absl::Span<T> used_up(const Pass<T>& pass) const override {
    return memory_[pass.slot].gate_up.span();
  }
  int64_t used_up_count() const override { return int64_t{s_.rows()} * s_.gate_up_width(); }
  void BackwardWeight(const Pass<T>& pass, const T* x) override;

 private:
  DenseMemory<T> MemoryOf(const Pass<T>& pass) const;
  // From gate_up to what `down` takes.
  void Activate(const DenseMemory<T>& a, Stream& stream) const;
  // From the gradient of the logits to that of the gate's weight, and to its summand of dx.
  void GateBackward(const Pass<T>& pass, const DenseMemory<T>& a, const T* x, T* dx) const;

  const BlockShape s_;
  const Recompute recompute_;
  // dy is gathered chunk by chunk beside the product that takes it. Then that product comes before
  // its weight's gradient, and cannot take the place of the latter's x.
  const bool pipes_gradient_;
  const std::vector<DenseMemory<T>> memory_;
  const std::vector<DenseDeferred<T>> deferred_;
  const BlockLinears<T>& linears_;
};

}  // namespace convene::worker

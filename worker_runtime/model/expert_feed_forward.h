// The feed-forward network of a block with experts (Shazeer et al. 2017; Fedus et al. 2021), this
// rank's experts and its slice of their inner width. Shared experts, to which each token goes, are
// a dense network beside them.
//
//   x ─┬ router ─ the host plans the ways (parallel/expert_dispatch.h)
//      ├ to the experts' ranks ─ gate_up ─ activation ─ down ─ back ─ weighted sum ─┐
//      └ shared experts ────────────────────────────────────────────────────────────(+)─ y
//
// The host waits once a forward pass, for the choices of the group's tokens: the messages and the
// products take their sizes from it.
//
// On tensor-parallel ranks each rank routes all rows alike, and has a slice of each expert: what
// comes out is a summand, and so are the gradients of x, of the router's weights and of the
// choices' weights, which is why one rank alone adds the losses' part to these.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "worker_runtime/comm/collective.h"
#include "worker_runtime/device/arena.h"
#include "worker_runtime/device/device.h"
#include "worker_runtime/model/block_adapters.h"
#include "worker_runtime/model/block_linears.h"
#include "worker_runtime/model/block_part.h"
#include "worker_runtime/model/dense_feed_forward.h"
#include "worker_runtime/parallel/chunked_rows.h"
#include "worker_runtime/parallel/expert_dispatch.h"

namespace convene::worker {

// Tensors that the forward pass leaves for the backward pass. "bound" is ExpertShape's.
template <typename T>
struct ExpertMemory {
  ArenaBlock<float> logits;    // (rows, experts)
  ArenaBlock<int32_t> chosen;  // (ranks, rows, chosen): of all ranks of the group
  ArenaBlock<float> weights;   // (rows, chosen)
  ArenaBlock<float> balance;   // (batch, experts): RouterPenalty's
  ArenaBlock<int32_t> arrays;  // ExpertDispatch's
  ArenaBlock<T> x;             // (bound, hidden), by expert, as are the next ones
  ArenaBlock<T> gate_up;       // (bound, gate_up_width)
  ArenaBlock<T> product;       // (bound, ffn)
  // (bound), by expert: DropoutMask::tokens, where the experts' adapters drop numbers.
  ArenaBlock<int64_t> tokens;
};
template <typename T>
void DeclareExperts(const BlockShape& shape, const Recompute& recompute, const SetDeclarer& declare,
                    ExpertMemory<T>& memory);

// Memory and communicators that all blocks with experts of a rank share. Borrowed.
template <typename T>
struct ExpertSurroundings {
  Collective* ep = nullptr;
  ChunkedRows* summands = nullptr;  // ChunkedRows::Summands
  T* sent = nullptr;                // scratch, as ScratchSizes say
  T* arrived = nullptr;
  float* floats = nullptr;
  int32_t* chosen = nullptr;       // in host memory: as ExpertMemory's
  double* losses = nullptr;        // RouterPenalty adds to them
  ExpertTotals* totals = nullptr;  // in host memory
  // Messages run beside the shared experts; null: nothing does.
  Device* beside = nullptr;
  Event* routed = nullptr;
  Event* fork = nullptr;
  Event* join = nullptr;
  absl::Duration timeout;  // of each wait for the device
};

template <typename T>
class ExpertFeedForward final : public BlockPart<T> {
 public:
  // By slot, of the experts and of the shared experts; by deferred slot, of the latter. Declares
  // where tokens go, by slot, in `staging` (Stage::Make). The weight
  // gradients of experts and router come in the input half of a backward pass.
  ExpertFeedForward(const BlockShape& shape, const Recompute& recompute,
                    std::vector<ExpertMemory<T>> memory, std::vector<DenseMemory<T>> shared,
                    std::vector<DenseDeferred<T>> deferred, const BlockAdapters<T>& adapters,
                    Arena& staging);

  ScratchSizes scratch(DeviceKind device, int64_t spare) const override;
  absl::Status Forward(const Pass<T>& pass, const T* x, T* y) override;
  bool starts_from_input() const override { return recompute_.mlp; }
  absl::Status Again(const Pass<T>& pass, const T* x) override;
  absl::Status Backward(const Pass<T>& pass, const T* x, const T* dy, T* dx,
                        absl::Span<T> spare) override;
  void BackwardWeight(const Pass<T>& pass, const T* x) override;

 private:
  absl::Status Route(const Pass<T>& pass, const T* x);
  // A router's bias in float, for the next op; null: none.
  const float* FloatBias(const Pass<T>& pass, int role);
  // The losses of the router, and what its bias learns from.
  absl::Status Penalize(const Pass<T>& pass);
  // The choices of all ranks, in host memory.
  absl::Status FetchChosen(const Pass<T>& pass);
  absl::Status Await(const Pass<T>& pass);
  // Makes a chunk's plan, unless the whole microbatch is one.
  absl::Status PlanChunk(const Pass<T>& pass, int chunk);
  void CopyArrays(const Pass<T>& pass);
  // The chunk's rows of `x`, (its rows, columns), to the experts: by expert, into `sorted`. In two
  // halves: messages run beside what `between` queues.
  template <typename E, typename Between>
  absl::Status ToExperts(const Pass<T>& pass, const E* x, const int32_t* from, int columns, E* sent,
                         E* arrived, E* sorted, const Between& between);
  // Back from `sorted`; returns where the rows lie that ExpertDispatch::Places counts.
  template <typename E>
  absl::StatusOr<const E*> FromExperts(const Pass<T>& pass, const E* sorted, int columns,
                                       E* arrived, E* sent);
  template <typename Between>
  absl::Status TokensToExperts(const Pass<T>& pass, const T* x, T* sorted, const Between& between);
  // Token numbers, which the adapters' masks follow from, go the tokens' way to the experts.
  absl::Status TokenNumbersToExperts(const Pass<T>& pass);
  // Of this chunk's rows: the experts' layer, and its adapters, whose gradients this pass may make.
  LinearShape LayerOf(const Pass<T>& pass, BlockTensor tensor);
  LowRank<T> AdapterOf(const Pass<T>& pass, LowRank<T> adapter);
  // y by expert: the layer's product with x, by expert.
  void Multiply(const Pass<T>& pass, BlockTensor tensor, const T* x, T* y);
  // From the experts' x to what Activate takes.
  void GateUp(const Pass<T>& pass);
  void Activate(const Pass<T>& pass);
  // Adds to each row of y, by expert, its expert's bias, where there is one.
  void AddBiasOfExperts(const Pass<T>& pass, int role, int columns, T* y);
  // The gradient of such biases, (local experts, columns), from that of their rows.
  void BiasGradient(const Pass<T>& pass, int role, int columns, bool adds, const T* dy);
  // The bias behind `down`: adds its part to the gradients of the choices' weights, and makes its
  // own gradient, from dy by expert, which is lost.
  void DownBiasBackward(const Pass<T>& pass, bool adds, T* dy);
  // From dy by expert to the gradient of `product`, and that of the choices' weights.
  void DownBackward(const Pass<T>& pass, bool adds_weights, const T* dy, T* dproduct);
  // From the gradient of gate_up, which has taken its place, to dx by expert.
  void GateUpBackward(const Pass<T>& pass, bool adds_weights, T* dx);
  // From this chunk's dy to its summand of dx, and the gradients of its choices' weights.
  absl::Status ChunkBackward(const Pass<T>& pass, const T* dy, bool adds_weights, bool adds_dx,
                             T* dx);
  absl::Status RouterBackwards(const Pass<T>& pass, const T* x, T* dx);
  Pass<T> SharedPass(const Pass<T>& pass, UnitSurroundings<T>& around) const;

  const ExpertMemory<T>& MemoryOf(const Pass<T>& pass) const { return memory_[pass.slot]; }
  ExpertDispatch& plan(const Pass<T>& pass) { return plans_[pass.slot]; }
  const ExpertSurroundings<T>& Around(const Pass<T>& pass) const { return *pass.around.experts; }
  bool has_shared() const { return shared_ != nullptr; }
  const DispatchShape& dispatch() const { return s_.experts.dispatch; }
  int64_t choices() const { return int64_t{s_.rows()} * dispatch().chosen; }
  int gate_up_width() const { return ActivationInputs(s_.family->activation) * s_.experts.ffn; }
  // The rank that adds to the summands of tp what is whole on each.
  bool adds_whole(const Pass<T>& pass) const { return pass.around.rows->tp().rank() == 0; }
  bool has_losses() const { return s_.experts.balance_loss > 0 || s_.experts.z_loss > 0; }

  // The parts of `floats`.
  float* DWeights(const Pass<T>& pass) const { return Around(pass).floats; }  // (rows, chosen)
  float* SentFloats(const Pass<T>& pass) const { return DWeights(pass) + choices(); }
  float* ArrivedFloats(const Pass<T>& pass) const { return SentFloats(pass) + choices(); }
  float* SortedWeights(const Pass<T>& pass) const { return ArrivedFloats(pass) + dispatch().bound; }
  float* SortedDWeights(const Pass<T>& pass) const {
    return SortedWeights(pass) + dispatch().bound;
  }
  // Token numbers, as pairs of floats.
  float* SentNumbers(const Pass<T>& pass) const { return SortedDWeights(pass) + dispatch().bound; }
  float* ArrivedNumbers(const Pass<T>& pass) const { return SentNumbers(pass) + 2 * choices(); }

  const BlockShape s_;
  const Recompute recompute_;
  const std::vector<ExpertMemory<T>> memory_;
  const BlockLinears<T> linears_;                      // without 8-bit products
  const std::unique_ptr<DenseFeedForward<T>> shared_;  // null: none
  std::vector<ExpertDispatch> plans_;                  // by slot
};

}  // namespace convene::worker

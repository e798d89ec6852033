// One pipeline stage of the model on one rank: embedding (first stage), blocks, final norm, head and loss (last stage).
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "worker_runtime/comm/collective.h"
#include "worker_runtime/device/arena.h"
#include "worker_runtime/mesh/mesh.h"
#include "worker_runtime/model/block.h"
#include "worker_runtime/model/config.h"
#include "worker_runtime/model/parameters.h"
#include "worker_runtime/parallel/vocabulary.h"
#include "worker_runtime/schedule/executor.h"

namespace convene::worker {

// The tokens of one step on this data-parallel rank: (microbatches, micro_batch_size, sequence_length) each. Borrowed.
struct TokenBatch {
  const int32_t* inputs = nullptr;
  const int32_t* targets = nullptr;  // negative: does not count
  float gradient_scale = 0;          // 1 / counted tokens of the whole global batch
};

// Not thread-safe. All memory comes from the arena that was planned with it.
class Stage : public PipelineStage {
 public:
  struct Options {
    ModelConfig config;
    Layout layout;
    Coordinate coordinate;
    int micro_batch_size = 1;
    int sequence_length = 1;
    int slots = 1;  // microbatches in flight: ActivationSlots()
  };

  // Declares activations and scratch in `plan`. `table` and `tp` are borrowed and outlive the stage.
  Stage(const Options& options, const ParameterTable& table, Collective& tp, ArenaPlan& plan);

  // Once the plan has memory. `parameters` and `gradients` have table.flat_count elements.
  void Bind(const Arena& arena, const float* parameters, float* gradients);

  // Before each schedule run. Forgets the losses summed so far.
  void SetBatch(const TokenBatch& batch);
  // Summed loss in nats of this batch's counted tokens; 0 on every stage but the last.
  double loss_sum() const { return loss_sum_; }

  absl::Status Forward(int microbatch, Stream& stream) override;
  absl::Status Backward(int microbatch, Stream& stream) override;
  absl::Span<float> input(int microbatch) override;
  absl::Span<float> output(int microbatch) override;
  absl::Span<float> gradient(int microbatch) override;

 private:
  // Handles into the arena, then the pointers they become.
  struct BlockHandles {
    ArenaHandle input, norm1, norm1_rms, qkv, attention, log_sum_exp, middle, norm2, norm2_rms,
        gate_up, product;
  };
  struct SlotHandles {
    std::vector<BlockHandles> blocks;
    ArenaHandle output, final_norm, final_rms, logits;
  };
  struct Slot {
    std::vector<BlockActivations> blocks;
    float* output = nullptr;      // (rows, hidden): of the last block
    float* final_norm = nullptr;  // (rows, hidden), last stage
    float* final_rms = nullptr;   // (rows), last stage
    float* logits = nullptr;      // (rows, vocabulary / tp), last stage: after Forward, their gradient
  };

  bool first() const { return options_.coordinate.pp == 0; }
  bool last() const { return options_.coordinate.pp == options_.layout.pp - 1; }
  Slot& slot(int microbatch) { return slots_[microbatch % slots_.size()]; }
  const int32_t* InputsOf(int microbatch) const;
  const int32_t* TargetsOf(int microbatch) const;
  absl::Status ForwardLoss(int microbatch, Slot& slot, Stream& stream);
  absl::Status BackwardLoss(Slot& slot, float* gradient, Stream& stream);
  void PlanSlot(const std::string& prefix, ArenaPlan& plan, SlotHandles& handles);
  void PlanScratch(ArenaPlan& plan);

  const Options options_;
  const ParameterTable& table_;
  Collective& tp_;
  const BlockShape shape_;
  const VocabularySlice vocabulary_;

  std::vector<SlotHandles> slot_handles_;
  ArenaHandle gradient_handles_[2];
  ArenaHandle hidden_handle_, wide_handle_, narrow_handle_, attention_handle_, cosines_handle_,
      sines_handle_, row_max_handle_, sums_handle_;

  // Set by Bind.
  std::vector<Slot> slots_;
  BlockScratch scratch_;
  BlockContext context_;
  CrossEntropyBuffers loss_buffers_;
  float* gradient_buffers_[2] = {nullptr, nullptr};
  const float* parameters_ = nullptr;
  float* gradients_ = nullptr;

  TokenBatch batch_;
  double loss_sum_ = 0;
};

}  // namespace convene::worker

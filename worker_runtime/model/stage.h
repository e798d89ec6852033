// One pipeline stage of the model on one rank: embedding (first stage), blocks, final norm, head
// and loss (last stage).
#pragma once

#include <cstdint>
#include <string>
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

// The tokens of one step on this data-parallel rank: (microbatches, micro_batch_size,
// sequence_length) each. Borrowed.
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

  // Declares activations and scratch in `arena`. All three are borrowed and outlive the stage.
  Stage(const Options& options, const ParameterTable& table, Collective& tp, Arena& arena);

  // Once the arena is built. `parameters` and `gradients` have table.flat_count elements.
  void Bind(const float* parameters, float* gradients);

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
  // Declared blocks of the arena, then the pointers they become.
  struct BlockMemory {
    ArenaBlock<float> input, norm1, norm1_rms, qkv, attention, log_sum_exp, middle, norm2,
        norm2_rms, gate_up, product;
  };
  struct SlotMemory {
    std::vector<BlockMemory> blocks;
    ArenaBlock<float> output, final_norm, final_rms, logits;
  };
  struct Slot {
    std::vector<BlockActivations> blocks;
    float* output = nullptr;      // (rows, hidden): of the last block
    float* final_norm = nullptr;  // (rows, hidden), last stage
    float* final_rms = nullptr;   // (rows), last stage
    float* logits = nullptr;  // (rows, vocabulary / tp), last stage: after Forward, their gradient
  };

  bool first() const { return options_.coordinate.pp == 0; }
  bool last() const { return options_.coordinate.pp == options_.layout.pp - 1; }
  Slot& slot(int microbatch) { return slots_[microbatch % slots_.size()]; }
  const int32_t* InputsOf(int microbatch) const;
  const int32_t* TargetsOf(int microbatch) const;
  absl::Status ForwardLoss(int microbatch, Slot& slot, Stream& stream);
  absl::Status BackwardLoss(Slot& slot, float* gradient, Stream& stream);
  void DeclareSlot(const std::string& prefix, SlotMemory& memory);
  void DeclareScratch();
  ArenaBlock<float> Declare(const std::string& name, int64_t count);

  const Options options_;
  const ParameterTable& table_;
  Collective& tp_;
  Arena& arena_;
  const BlockShape shape_;
  const VocabularySlice vocabulary_;

  std::vector<SlotMemory> slot_memory_;
  ArenaBlock<float> gradient_memory_[2];
  ArenaBlock<float> hidden_memory_, wide_memory_, narrow_memory_, attention_memory_,
      cosines_memory_, sines_memory_, row_max_memory_, sums_memory_;

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

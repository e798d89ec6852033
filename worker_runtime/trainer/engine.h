// One rank's trainer: parameters, gradients, optimizer shard and pipeline stage over one arena, and
// the optimizer step over them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker_runtime/comm/bootstrap.h"
#include "worker_runtime/device/arena.h"
#include "worker_runtime/mesh/mesh.h"
#include "worker_runtime/model/config.h"
#include "worker_runtime/model/parameters.h"
#include "worker_runtime/model/stage.h"
#include "worker_runtime/schedule/executor.h"
#include "worker_runtime/schedule/schedule.h"
#include "worker_runtime/shard/sharded_optimizer.h"

namespace convene::worker {

struct EngineOptions {
  ModelConfig model;
  Layout layout;
  int rank = 0;
  uint64_t seed = 0;
  int micro_batch_size = 1;
  int sequence_length = 1;
  int microbatches = 1;  // a step, on this data-parallel rank
  double clip_grad_norm = 1.0;
};

// The same on every rank.
struct StepResult {
  double loss = 0;              // nats a token, mean over the global batch, before the update
  double grad_norm = 0;         // before clipping, over all parameters
  bool stop_requested = false;  // by any rank
  std::string skipped;          // why nothing was updated (the gradient was no number); "" = it was
};

// Not thread-safe. Allocates in Create() alone; a step allocates nothing of its own.
class Engine {
 public:
  // Plans memory, allocates it, and fills in the initial weights. `communicators` is borrowed and
  // outlives the engine. ResourceExhausted when the plan does not fit in memory; the text says how
  // much was wanted.
  static absl::StatusOr<std::unique_ptr<Engine>> Create(const EngineOptions& options,
                                                        CommunicatorSet& communicators);

  // One optimizer step over this rank's part of the global batch: `options.microbatches`
  // microbatches. `stop` is this rank's wish. `adam.gradient_scale` is set by clipping. A gradient
  // that is no number leaves weights and moments as they were. Errors: the collective's.
  absl::StatusOr<StepResult> TrainStep(const TokenBatch& batch, AdamWParameters adam, bool stop,
                                       Stream& stream);

  // Summed loss over all ranks of `microbatches` forward passes.
  absl::StatusOr<double> ForwardLoss(const TokenBatch& batch, int microbatches, Stream& stream);

  ShardedOptimizer& optimizer() { return *optimizer_; }
  const ParameterTable& table() const { return table_; }
  absl::Span<const float> parameters() const { return parameters_; }
  absl::Span<const float> gradients() const { return gradients_; }
  // The arena's table: name, bytes, share.
  std::string MemoryPlan() const { return arena_.PlanToString(); }

 private:
  Engine(const EngineOptions& options, CommunicatorSet& communicators);
  absl::Status Allocate();
  absl::Status SumTiedGradients(Stream& stream);

  const EngineOptions options_;
  const Coordinate coordinate_;
  CommunicatorSet& communicators_;
  const ParameterTable table_;
  const std::vector<Action> train_actions_;

  Arena arena_;
  const ArenaBlock<float> parameters_memory_;
  const ArenaBlock<float> gradients_memory_;
  std::unique_ptr<Stage> stage_;
  std::unique_ptr<ShardedOptimizer> optimizer_;
  std::unique_ptr<PipelineExecutor> executor_;

  // Set by Allocate.
  absl::Span<float> parameters_;
  absl::Span<float> gradients_;
};

}  // namespace convene::worker

// One rank's trainer: parameters, gradients, optimizer shard and pipeline stage over one arena of
// the device's memory, and the optimizer step over them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "worker_runtime/comm/bootstrap.h"
#include "worker_runtime/device/arena.h"
#include "worker_runtime/device/device.h"
#include "worker_runtime/device/elements.h"
#include "worker_runtime/mesh/mesh.h"
#include "worker_runtime/model/config.h"
#include "worker_runtime/model/stage.h"
#include "worker_runtime/optimizer/update_rule.h"
#include "worker_runtime/parallel/context_cut.h"
#include "worker_runtime/pipeline/executor.h"
#include "worker_runtime/pipeline/graphed_stage.h"
#include "worker_runtime/schedule/plan.h"
#include "worker_runtime/shard/bucket_store.h"
#include "worker_runtime/shard/sharded_optimizer.h"
#include "worker_runtime/trainer/document_feed.h"
#include "worker_runtime/trainer/token_batch.h"

namespace convene::worker {

struct EngineOptions {
  ModelConfig model;
  const UpdateRule* update_rule = &AdamWRule();  // borrowed
  Layout layout;
  int rank = 0;
  uint64_t seed = 0;
  DType dtype = DType::kFloat32;         // of parameters and activations
  DType reduce_dtype = DType::kFloat32;  // of gradients between data-parallel ranks
  Recompute recompute = Recompute::kNone;
  bool deterministic = false;
  // The residual stream's rows are split over tp (ResidualRows). REQUIRES: they are divisible by
  // tp.
  bool sequence_parallel = false;
  // Collectives run beside the arithmetic where they can; the results are the same bits.
  bool overlap_communication = true;
  bool packed_documents = false;  // each TokenBatch says where documents begin
  int micro_batch_size = 1;
  int sequence_length = 1;  // of a whole row
  ContextMethod context_method = ContextMethod::kRing;
  int microbatches = 1;  // a step, on this data-parallel rank
  // Of layout.pp ranks and these microbatches; without ranks: 1f1b.
  Schedule schedule;
  std::vector<int> chunk_layers;  // of each of the schedule's chunks; empty: CutLayers' own cut
  // The fewest elements that data-parallel ranks reduce and gather by one collective; 0: as the
  // device wants (BucketCountMin).
  int64_t bucket_count_min = 0;
  // A data-parallel rank keeps its shard alone of: 0 and 1, the optimizer's state (layout says of
  // how many ranks); 2, the gradients too; 3, the parameters too.
  int zero_stage = 1;
  bool reshard_after_forward = true;  // in stage 3: ParameterShards::Options::reshards
  // The optimizer's state lies in host memory, and the host updates it beside the device.
  bool offload_optimizer = false;
  // This rank's shard of the parameters lies there too. REQUIRES: zero_stage 3, offload_optimizer.
  bool offload_parameters = false;
  double clip_grad_norm = 1.0;
  // The stage's training passes are captured as graphs, where the device can. REQUIRES: tp and cp
  // are 1, and zero_stage at most 1.
  bool cuda_graphs = false;
  // Host memory for a checkpoint's copy of the shard is planned with all other memory
  // (ShardedOptimizer::Options). Without it a rank with a GPU neither saves nor resumes.
  bool copies_for_checkpoints = false;
  absl::Duration timeout = absl::Minutes(10);  // of each wait for the device
  // False: weights are zeros until a checkpoint or InitializeWeights() fills them in.
  bool fresh_weights = true;
  // Whether this rank wants the training to stop; asked by the engine's own thread, often. Null:
  // never.
  std::function<bool()> stop_wanted;
  // The memory of all buffers of collectives: CollectiveMemory's (comm/connect.h), of the same
  // device. Borrowed. Null: device.memory().
  Memory* collective_memory = nullptr;
};

// The same on every rank.
struct StepResult {
  // Nats a token, before the update: the mean over the targets of the global batch that count. 0
  // where none counts.
  double loss = 0;
  double grad_norm = 0;         // before clipping, over all parameters
  bool stop_requested = false;  // by any rank
  int64_t counted_targets = 0;  // of the global batch
  // Nothing was updated: the gradient was no number, or no target counts.
  bool skipped = false;
};

// The same on every rank.
struct ForwardResult {
  double loss = 0;              // nats, sum over the batch's targets that count
  bool stop_requested = false;  // by any rank
};

// The memory that an engine allocates, in bytes.
struct MemoryPlan {
  size_t device_bytes = 0;
  size_t host_bytes = 0;  // on a CPU both are of one memory
  std::string text;       // a table for each (Arena::PlanToString)
};

// Not thread-safe. Allocates in Create() alone; a step allocates nothing of its own.
//
// A step in compute(): the pipeline's run, sums, update. Beside it, in communication(): reductions
// from the last microbatch's backward pass on, and gathers until the next run needs their
// parameters (BucketStore).
class Engine {
 public:
  // Plans memory, allocates it, and fills in fresh weights unless told otherwise. `communicators`
  // and `device` are borrowed: the communicators until the last step, the device for as long as the
  // engine lives. ResourceExhausted when the plan does not fit in memory; the text names the bytes
  // wanted.
  static absl::StatusOr<std::unique_ptr<Engine>> Create(const EngineOptions& options,
                                                        CommunicatorSet& communicators,
                                                        Device& device);

  // Waits for queued work before the memory goes; for a GPU's a minute at most.
  ~Engine();

  // The plan by which Create() would allocate, to the byte. Allocates nothing.
  static MemoryPlan PlanMemory(const EngineOptions& options, CommunicatorSet& communicators,
                               Device& device);

  // The weights that the seed gives. REQUIRES: no step is in flight.
  void InitializeWeights();

  // Starts one optimizer step over this rank's part of the global batch: `options.microbatches`
  // microbatches. The batch may be reused on return. A gradient that is no number leaves weights
  // and moments as they were. So does a batch of which no target counts: its gradient is 0, and
  // AdamW would still move weights by their decay and by the moments. Such a step runs no pass.
  // Errors: the collective's, the device's. REQUIRES: no step is in flight.
  absl::Status QueueStep(const TokenBatch& batch, const UpdateParameters& update);
  // Waits for the step's result. On a GPU, and with offload_optimizer, it is there before the
  // update is done, so a next step that is queued at once begins without a pause: with
  // offload_optimizer a unit's first pass waits until the host has updated that unit. The result
  // counts options.stop_wanted as of the moment when the ranks add up their results, after the last
  // backward pass. Errors: the collective's, the device's, DeadlineExceeded. REQUIRES: a step is in
  // flight.
  absl::StatusOr<StepResult> AwaitStep();
  bool is_in_flight() const { return is_in_flight_; }

  // QueueStep and AwaitStep. REQUIRES: no step is in flight.
  absl::StatusOr<StepResult> TrainStep(const TokenBatch& batch, const UpdateParameters& update);

  // The loss of `microbatches` forward passes, over all ranks. REQUIRES: no step is in flight;
  // microbatches <= options.microbatches.
  absl::StatusOr<ForwardResult> ForwardLoss(const TokenBatch& batch, int microbatches);

  ShardedOptimizer& optimizer() { return *optimizer_; }
  const Placement& placement() const { return store_.placement(); }
  const BucketStore& store() const { return store_; }
  // In the device's memory; the host may read them once Device::Synchronize has returned. Whole as
  // far as BucketStore has whole ones. With offload_optimizer parameters may still be those of the
  // step before: a bucket changes when a later call needs it. CopyParameters has the new ones.
  ConstElements parameters() const { return store_.parameters(); }
  absl::Span<const float> gradients() const { return store_.gradients(); }
  // A copy of all parameters, as placement() says, in host memory: (placement().flat_count) of
  // options.dtype. All ranks of a data-parallel group call it. Errors: the collective's, the
  // device's. REQUIRES: no step is in flight.
  absl::StatusOr<std::vector<char>> CopyParameters();

 private:
  // Numbers that change from step to step, beside the tokens; they go to the device in one copy.
  struct Inputs {
    UpdateRule::Factors factors;
    float gradient_scale;
  };
  // The numbers that ranks add up at the end of a step, in one all-reduce.
  struct Totals {
    double sum_of_squares;
    double loss;  // nats
    double stop;
  };
  static constexpr size_t kTotals = sizeof(Totals) / sizeof(double);

  // The inputs of a step, and the totals that come back, on the device or on the host.
  struct StepMemory {
    ArenaBlock<int32_t> inputs, targets;
    ArenaBlock<Inputs> scalars;
    ArenaBlock<Totals> totals;  // on the host: what all ranks added up
  };

  Engine(const EngineOptions& options, CommunicatorSet& communicators, Device& device);
  // This rank's part of a schedule on the engine's chunks.
  RankPlan PlanOf(const Schedule& schedule) const;
  StepMemory DeclareStep(Arena& arena, const char* prefix, ArenaPart totals_part) const;
  absl::Status Allocate();

  // Copies the batch, zeroes the totals and hands the stage its tokens.
  void Feed(const TokenBatch& batch, int microbatches, bool is_training);
  absl::Status QueueEmptyStep();
  void PassOnStop();
  // Adds the totals up over all ranks and starts their way to the host.
  absl::Status AddUp();
  absl::Status Await();

  const EngineOptions options_;
  const Coordinate coordinate_;
  const ContextCut cut_;
  const std::vector<int32_t> positions_;  // of this rank's tokens
  CommunicatorSet& communicators_;
  const std::vector<Collective*> collectives_;  // those of the device's memory
  Device& device_;
  const Schedule schedule_;
  const int64_t microbatch_tokens_;

  const UnitsByChunk units_;  // of this rank's chunks
  Arena arena_;
  Arena staging_;
  BucketStore store_;
  const StepMemory on_device_, on_host_;
  const ArenaBlock<StepControl> control_;
  // On the host: this rank's wish, as a number to add up. Only this word may change while a copy of
  // it is queued: any mix of the bytes of 0 and 1 is 0 or a number above it.
  const ArenaBlock<double> stop_;
  DocumentFeed documents_;
  std::unique_ptr<ShardedOptimizer> optimizer_;
  std::unique_ptr<Stage> stage_;
  std::unique_ptr<GraphedStage> graphed_stage_;  // null without cuda_graphs
  std::unique_ptr<PipelineExecutor> training_executor_;

  const std::unique_ptr<Event> done_;  // on_host_.totals are there
  int64_t counted_targets_ = 0;        // of the step that was queued last
  bool is_in_flight_ = false;
};

}  // namespace convene::worker

// The parts of one rank's engine (engine.h), and the plan of their memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "worker_runtime/comm/bootstrap.h"
#include "worker_runtime/device/arena.h"
#include "worker_runtime/device/device.h"
#include "worker_runtime/device/dtype.h"
#include "worker_runtime/inference/language_model.h"
#include "worker_runtime/mesh/mesh.h"
#include "worker_runtime/model/config.h"
#include "worker_runtime/model/stage.h"
#include "worker_runtime/ops/binned_sum.h"
#include "worker_runtime/optimizer/update_rule.h"
#include "worker_runtime/options/sample_options.h"
#include "worker_runtime/parallel/chunked_rows.h"
#include "worker_runtime/parallel/context_cut.h"
#include "worker_runtime/schedule/lower.h"
#include "worker_runtime/schedule/plan.h"
#include "worker_runtime/shard/bucket_store.h"
#include "worker_runtime/shard/rank_stores.h"
#include "worker_runtime/shard/sharded_optimizer.h"
#include "worker_runtime/trainer/document_feed.h"

namespace convene::worker {

struct EngineOptions {
  ModelConfig model;
  const UpdateRule* update_rule = &AdamWRule();  // borrowed
  // Beside the matrices of blocks and an untied head, weight decay applies to these.
  bool decay_embeddings = true;
  bool decay_norms_and_biases = false;
  Layout layout;
  int rank = 0;
  uint64_t seed = 0;
  DType dtype = DType::kFloat32;         // of parameters and activations
  bool float8 = false;                   // the products of blocks take 8-bit floats
  int bf16_end_blocks = 0;               // Float8Products
  DType reduce_dtype = DType::kFloat32;  // of gradients between data-parallel ranks
  // Sums of gradients, of their squares and of losses that no dp, pp, schedule, ZeRO stage or
  // number of microbatches changes, to the bit, where the microbatches of a step are the same
  // (BatchCut::keeps_microbatches). REQUIRES: reduce_dtype kFloat32, no cuda_graphs, ep 1.
  bool reproducible = false;
  int64_t global_microbatches = 1;  // of the largest step, over all ranks; for `reproducible`
  Recompute recompute = Recompute::kNone;
  bool deterministic = false;
  // The residual stream's rows are split over tp (ResidualRows). REQUIRES: they are divisible by
  // tp.
  bool sequence_parallel = false;
  int row_chunks = 0;       // ChooseChunks: at most as many; 0: as it pays
  size_t logits_bytes = 0;  // LossHeadShape; 0: LossLogitsBytes
  // Collectives run beside the arithmetic where they can; the results are the same bits.
  bool overlap_communication = true;
  bool packed_documents = false;  // each TokenBatch says where documents begin
  double preference_beta = 0;     // Stage::Options'
  int micro_batch_size = 1;
  int sequence_length = 1;  // of a whole row
  ContextMethod context_method = ContextMethod::kRing;
  int microbatches = 1;  // a step, on this data-parallel rank
  // Of layout.pp ranks and these microbatches; without ranks: 1f1b.
  Schedule schedule;
  // Of the same chunks, by their numbers of micro batches: other steps that may be asked for, all
  // with fewer micro batches.
  std::map<int, Schedule> shorter_schedules;
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
  // (ShardedOptimizer::Options). Without it nothing is saved beside the training, and a rank with a
  // GPU that does not offload neither saves nor resumes.
  bool copies_for_checkpoints = false;
  // Of the shards that this rank keeps in its node's memory (PeerReplicas): they count in the plan,
  // and Engine::Create does not take their memory.
  int copies_in_memory = 0;
  // Texts can be made between steps, in memory that is planned with all other (Engine::generation).
  SampleRoom samples;
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

// PURE. Into how many chunks the rows of a microbatch are cut (parallel/chunked_rows.h).
ChunkChoice RowChunksOf(const EngineOptions& options, DeviceKind device);

// PURE. The largest of 2 GiB and its halves for EngineOptions::logits_bytes with which the plan of
// every stage takes at most 0.9 of a GPU's `memory_bytes`, or as much as with LossLogitsBytes; the
// latter where there is none, on a CPU, and with `reproducible`. The head's products are faster on
// more rows, and their bits depend on the chunks: all ranks give the same `memory_bytes`.
size_t ChooseLogitsBytes(const EngineOptions& options, int64_t memory_bytes, Device& device);

// PURE. The passes of all pipeline ranks of a layout, in a step and in a validation of as many
// microbatches.
struct StepPlans {
  explicit StepPlans(const EngineOptions& options);

  ChunkPlacement placement;
  std::vector<RankPlan> training, validation;    // [pipeline rank]
  std::map<int, std::vector<RankPlan>> shorter;  // as EngineOptions::shorter_schedules
};

// Numbers that change from step to step, beside the tokens; they go to the device in one copy.
struct StepInputs {
  UpdateRule::Factors factors;
  float gradient_scale;
};

// The numbers that ranks add up at the end of a step, in one all-reduce.
struct StepTotals {
  double sum_of_squares;
  double loss;       // nats
  double router[2];  // RouterPenalty's losses
  double stop;
  double rewards[2];  // PreferenceLoss's
  ExpertTotals experts;
  // For EngineOptions::reproducible: the exact sums that become the first four numbers.
  double exact[4][kExactDigits];
};
// Of those, so many travel without it.
inline constexpr size_t kPlainTotals = offsetof(StepTotals, exact) / sizeof(double);

// The inputs of a step, and the totals that come back, on the device or on the host.
struct StepMemory {
  ArenaBlock<int32_t> inputs, targets;
  ArenaBlock<int64_t> token_numbers;  // StageBatch's; empty where nothing is dropped
  ArenaBlock<StepInputs> scalars;
  ArenaBlock<double> references, answer_losses;  // StageBatch's; empty without pairs of answers
  ArenaBlock<StepTotals> totals;                 // on the host: what all ranks added up
};

// One rank's parameters, optimizer, stage and inputs, over two arenas that are declared and not yet
// built. The constructor asks `device` for its kind and for events, and `communicators` for ranks
// and sizes; it allocates nothing of theirs, and queues nothing. It borrows both.
struct EngineParts {
  EngineParts(const EngineOptions& options, const StepPlans& plans, CommunicatorSet& communicators,
              Device& device);

  const Coordinate coordinate;
  const ContextCut cut;
  const UnitsByChunk units;  // of the rank's chunks
  Arena arena;               // the device's memory
  Arena staging;             // the host's
  BucketStore store;         // of StoreKind::kDense
  // By StoreKind; null: no tensor of the rank is of the kind, or it is the one above.
  const std::array<std::unique_ptr<BucketStore>, kStoreKinds> other_stores;
  RankStores stores;
  const StepMemory on_device, on_host;
  const ArenaBlock<StepControl> control;
  // On the host: this rank's wish, as a number to add up. Only this word may change while a copy of
  // it is queued: any mix of the bytes of 0 and 1 is 0 or a number above it.
  const ArenaBlock<double> stop;
  const ArenaBlock<ExpertTotals> experts;  // on the host: this rank's, to add up
  DocumentFeed documents;
  ShardedOptimizer optimizer;
  const std::unique_ptr<ShardedOptimizer> expert_optimizer;
  RankOptimizers optimizers;
  const std::unique_ptr<Stage> stage;
  const std::unique_ptr<LanguageModel> generation;  // null: EngineOptions::samples has no room

  // Parameters of this rank's shards.
  int64_t ShardCount() const;
  // Bytes of what a checkpoint has of these shards, at most.
  size_t StateBytes() const;
};

// The memory that an engine allocates, in bytes, and that NCCL does.
struct MemoryPlan {
  size_t device_bytes = 0;
  size_t host_bytes = 0;  // on a CPU both are of one memory; with copies_in_memory
  size_t nccl_bytes = 0;  // besides, on the device: NCCL's own buffers, an estimate; 0 on a CPU
  std::string text;       // a table for each (Arena::PlanToString), and a line about NCCL's
};

// [pipeline rank]: the plan by which Engine::Create allocates, to the byte; the ranks of a stage
// have the same. `options.rank` counts for nothing, and `device` as in EngineParts. Allocates
// nothing.
std::vector<MemoryPlan> PlanMemory(EngineOptions options, Device& device);

}  // namespace convene::worker

#include "worker_runtime/trainer/engine_parts.h"

#include <algorithm>
#include <iterator>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "tools/base/text.h"
#include "worker_runtime/comm/nccl/buffers.h"
#include "worker_runtime/model/block.h"
#include "worker_runtime/model/loss_head.h"
#include "worker_runtime/ops/documents.h"
#include "worker_runtime/parallel/context_attention.h"
#include "worker_runtime/schedule/chunk_layers.h"
#include "worker_runtime/schedule/generators.h"

namespace convene::worker {
namespace {

// BucketCountMin's default is for NCCL; CPUs' messages are as fast from 4 MB on, and a model that
// they train is smaller than one such bucket.
constexpr int64_t kBucketCountMinOnCpu = 1'000'000;

// A shard of one rank is all there is: what is whole needs no second place for it, unless that is
// in host memory.
bool Shards(const EngineOptions& options, int stage, int shards) {
  return options.zero_stage >= stage && (shards > 1 || options.offload_parameters);
}

bool Shards(const EngineOptions& options, int stage) {
  return Shards(options, stage, options.layout.dp_shard() * options.layout.cp);
}

// `shards`: ranks that share a copy of the optimizer's state.
int64_t BucketCountOf(const EngineOptions& options, int shards, DeviceKind device) {
  if (options.reproducible || Shards(options, 2, shards)) return kUnitBuckets;
  const bool is_default = options.bucket_count_min == 0 && device == DeviceKind::kCpu;
  return BucketCountMin(options.layout,
                        is_default ? kBucketCountMinOnCpu : options.bucket_count_min);
}

// A microbatch has one gradient of a tensor on each context-parallel rank, and a tied table two.
int64_t SummandsOf(const EngineOptions& options) {
  if (!options.reproducible) return 0;
  return options.global_microbatches * options.layout.cp * (options.model.tied_embeddings ? 2 : 1);
}

void SetDecay(const EngineOptions& options, UnitSpec& unit) {
  // The head of a tied table is the same tensor.
  const bool has_tables = unit.kind == UnitKind::kEmbedding ||
                          (unit.kind == UnitKind::kHead && options.model.tied_embeddings);
  for (UnitTensor& tensor : unit.tensors) {
    for (ParameterSlice& slice : tensor.slices) {
      if (slice.balances) continue;  // no loss teaches it, so nothing would hold it against a decay
      slice.decayed =
          slice.decayed ? options.decay_embeddings || !has_tables : options.decay_norms_and_biases;
    }
  }
}

// The units of the chunks that lie on the rank.
UnitsByChunk UnitsOfRank(const EngineOptions& options, const ChunkPlacement& placement,
                         const Coordinate& coordinate) {
  const int count = static_cast<int>(placement.size());
  const std::vector<ModelChunk> chunks = ChunksOf(
      options.chunk_layers.empty() ? *CutLayers("", options.model.layers, count, /*head_cost=*/0)
                                   : options.chunk_layers,
      placement);
  UnitsByChunk units;
  for (int chunk = 0; chunk < count; ++chunk) {
    if (placement[chunk] != coordinate.pp) continue;
    const Layout& layout = options.layout;
    units[chunk] = UnitsOf(options.model, chunks[chunk], layout.tp, coordinate.tp, layout.ep,
                           ExpertRankOf(layout, coordinate));
    for (UnitSpec& unit : units[chunk]) SetDecay(options, unit);
  }
  return units;
}

std::vector<UnitSpec> AllUnits(const UnitsByChunk& chunks) {
  std::vector<UnitSpec> units;
  for (const auto& [chunk, of_chunk] : chunks) absl::c_copy(of_chunk, std::back_inserter(units));
  return units;
}

bool SplitsExperts(const EngineOptions& options) { return options.layout.ep > 1; }

BucketStore MakeStore(const EngineOptions& options, const UnitsByChunk& chunks, StoreKind kind,
                      int stage, CommunicatorSet& communicators, Device& device, Arena& arena,
                      Arena& staging) {
  const Layout& layout = options.layout;
  const bool of_experts = IsOfExperts(kind);
  const int shards = of_experts ? layout.expert_shards() : layout.dp_shard() * layout.cp;
  const int ranks = of_experts ? layout.expert_gradient_ranks() : layout.gradient_ranks();
  BucketStore::Groups groups = {
      .dp = of_experts ? *communicators.expert_dp : *communicators.dp,
      .dp_gather = of_experts ? *communicators.expert_dp_gather : *communicators.dp_gather,
      .dp_replicate = of_experts ? *communicators.expert_dp_replicate : *communicators.dp_replicate,
      .tp = *communicators.tp,
      .embedding = of_experts ? nullptr : communicators.embedding.get()};
  return BucketStore(PlaceUnits(TensorsOf(AllUnits(chunks), kind, SplitsExperts(options)), ranks,
                                BucketCountOf(options, shards, device.kind())),
                     {.dtype = options.dtype,
                      .reduce_dtype = options.reduce_dtype,
                      .binned_summands = SummandsOf(options),
                      .sums_over_tp = options.sequence_parallel,
                      .reduces_at_end = stage > 0,
                      .shards_gradients = Shards(options, 2, shards),
                      .shards_parameters = Shards(options, 3, shards),
                      .reshards_after_forward = options.reshard_after_forward,
                      .overlaps = options.overlap_communication,
                      // A graph of a whole pass waits for nothing.
                      .updates_beside = !options.cuda_graphs || layout.dp > 1,
                      .one_pass = options.microbatches == 1,
                      .is_frozen = IsFrozen(kind)},
                     groups, device, arena, options.offload_parameters ? staging : arena);
}

ShardedOptimizer::Options OptimizerOptionsOf(const EngineOptions& options) {
  return {.rule = options.update_rule,
          .copies_for_checkpoints = options.copies_for_checkpoints,
          .offloads = options.offload_optimizer,
          .offloads_parameters = options.offload_parameters,
          .router_bias_rate = static_cast<float>(options.model.experts.bias_rate),
          .overlaps = options.overlap_communication,
          .timeout = options.timeout};
}

// The stores of all kinds but the dense one. Where a run splits experts or freezes tensors, every
// rank has the stores for them, also a rank whose stage has no such tensor.
std::array<std::unique_ptr<BucketStore>, kStoreKinds> MakeOtherStores(
    const EngineOptions& options, const UnitsByChunk& chunks, int stage,
    CommunicatorSet& communicators, Device& device, Arena& arena, Arena& staging) {
  std::array<std::unique_ptr<BucketStore>, kStoreKinds> stores;
  const bool freezes = options.model.adapter.is_on();
  for (const StoreKind kind :
       {StoreKind::kExperts, StoreKind::kFrozen, StoreKind::kFrozenExperts}) {
    if ((IsFrozen(kind) && !freezes) || (IsOfExperts(kind) && !SplitsExperts(options))) continue;
    stores[static_cast<size_t>(kind)] = std::unique_ptr<BucketStore>(new BucketStore(
        MakeStore(options, chunks, kind, stage, communicators, device, arena, staging)));
  }
  return stores;
}

RankStores::Stores StoresOf(BucketStore& dense,
                            const std::array<std::unique_ptr<BucketStore>, kStoreKinds>& others) {
  RankStores::Stores stores = {&dense};
  for (size_t kind = 1; kind < stores.size(); ++kind) stores[kind] = others[kind].get();
  return stores;
}

std::vector<FrozenWeights> FrozenOf(
    const EngineOptions& options,
    const std::array<std::unique_ptr<BucketStore>, kStoreKinds>& stores, Device& device) {
  std::vector<FrozenWeights> frozen;
  for (const StoreKind kind : {StoreKind::kFrozen, StoreKind::kFrozenExperts}) {
    BucketStore* const store = stores[static_cast<size_t>(kind)].get();
    if (store != nullptr) frozen.emplace_back(*store, device, options.timeout);
  }
  return frozen;
}

std::unique_ptr<ShardedOptimizer> ExpertOptimizerOf(
    const EngineOptions& options,
    const std::array<std::unique_ptr<BucketStore>, kStoreKinds>& stores, Device& device,
    Arena& arena, Arena& staging) {
  BucketStore* const store = stores[static_cast<size_t>(StoreKind::kExperts)].get();
  if (store == nullptr) return nullptr;
  return std::make_unique<ShardedOptimizer>(*store, OptimizerOptionsOf(options), device, arena,
                                            staging);
}

int64_t StepTokens(const EngineOptions& options, const ContextCut& cut) {
  return int64_t{options.micro_batch_size} * cut.local_length() * options.microbatches;
}

StepMemory DeclareStep(const EngineOptions& options, const ContextCut& cut, Arena& arena,
                       const char* prefix, ArenaPart totals_part) {
  const int64_t tokens = StepTokens(options, cut);
  const int64_t numbered = options.model.adapter.dropout > 0 ? tokens : 0;
  const int64_t samples = int64_t{options.micro_batch_size} * options.microbatches;
  const int64_t pairs = options.preference_beta > 0 ? samples : 0;
  return {.inputs = arena.Declare<int32_t>(absl::StrCat(prefix, "tokens"), tokens),
          .targets = arena.Declare<int32_t>(absl::StrCat(prefix, "targets"), tokens),
          .token_numbers = arena.Declare<int64_t>(absl::StrCat(prefix, "token numbers"), numbered),
          .scalars = arena.Declare<StepInputs>(absl::StrCat(prefix, "scalars"), 1),
          .references = arena.Declare<double>(absl::StrCat(prefix, "references"), pairs),
          .answer_losses =
              arena.Declare<double>(absl::StrCat(prefix, "answer losses"), 2 * pairs, totals_part),
          .totals = arena.Declare<StepTotals>(absl::StrCat(prefix, "totals"), 1, totals_part)};
}

DocumentFeed::Options DocumentsOf(const EngineOptions& options, const ContextCut& cut,
                                  DeviceKind device) {
  const BlockShape block = MakeBlockShape(
      options.model, options.layout.tp, options.sequence_parallel, options.micro_batch_size,
      cut.local_length(), options.deterministic, options.packed_documents);
  return {.shape = ContextAttentionShape(cut, block.attention()),
          .cut = cut,
          .needs_table = cut.splits_heads() && NeedsDocumentTable(device, options.dtype),
          .microbatches = options.microbatches};
}

Stage::Options StageOptionsOf(const EngineOptions& options, DeviceKind device,
                              const StepPlans& plans, int pp_rank) {
  std::vector<const RankPlan*> training = {&plans.training[pp_rank]};
  for (const auto& [count, shorter] : plans.shorter) training.push_back(&shorter[pp_rank]);
  // Of any step.
  const auto most = [](const std::vector<const RankPlan*>& of, auto slots) {
    int count = 0;
    for (const RankPlan* plan : of) count = std::max(count, (plan->*slots).count);
    return count;
  };
  std::vector<const RankPlan*> all = training;
  all.push_back(&plans.validation[pp_rank]);
  return {.config = options.model,
          .dtype = options.dtype,
          // Copies of gathered weights would be as large as the weights that ranks do not keep.
          .float8 = {.is_on = options.float8,
                     .bf16_end_blocks = options.bf16_end_blocks,
                     .keeps_weights = !Shards(options, 3)},
          .recompute = options.recompute,
          .deterministic = options.deterministic,
          .packed_documents = options.packed_documents,
          .sequence_parallel = options.sequence_parallel,
          .row_chunks = RowChunksOf(options, device).chunks,
          .seed = options.seed,
          .logits_bytes = options.logits_bytes,
          .preference_beta = options.preference_beta,
          .overlaps = options.overlap_communication,
          .micro_batch_size = options.micro_batch_size,
          .sequence_length = options.sequence_length,
          .context_method = options.context_method,
          .timeout = options.timeout,
          .saved_slots = most(all, &RankPlan::saved),
          .deferred_slots = most(training, &RankPlan::deferred),
          .head_slots = most(all, &RankPlan::heads),
          .activation_slots = most(all, &RankPlan::activations),
          .gradient_slots = most(training, &RankPlan::gradients)};
}

std::unique_ptr<LanguageModel> MakeGeneration(const EngineOptions& options,
                                              const ChunkPlacement& placement,
                                              const UnitsByChunk& units, UnitStore& store,
                                              const CommunicatorSet& communicators, Device& device,
                                              Arena& arena, Arena& staging) {
  if (options.samples.sequences == 0) return nullptr;
  return std::make_unique<LanguageModel>(
      LanguageModel::Options{.config = options.model,
                             .layout = options.layout,
                             .dtype = options.dtype,
                             .sequences = options.samples.sequences,
                             .context = options.samples.context,
                             .prompt_tokens = options.samples.pass_tokens,
                             .timeout = options.timeout},
      LanguageModel::Weights{units, placement, store}, communicators, device, arena, staging);
}

Schedule ScheduleOf(const EngineOptions& options) {
  if (!options.schedule.ranks.empty()) return options.schedule;
  return *MakeSchedule("1f1b", options.layout.pp, 0, options.microbatches);
}

}  // namespace

ChunkChoice RowChunksOf(const EngineOptions& options, DeviceKind device) {
  if (options.float8) return {1, "1: 8-bit floats take one scale for all rows of a micro batch"};
  return ChooseChunks(options.micro_batch_size * options.sequence_length / options.layout.cp,
                      options.model.hidden_size * SizeOf(options.dtype), options.sequence_parallel,
                      options.layout.tp, device, options.row_chunks);
}

size_t ChooseLogitsBytes(const EngineOptions& options, int64_t memory_bytes, Device& device) {
  constexpr size_t kMost = size_t{2} << 30;
  constexpr double kUsableShare = 0.9;  // the rest is for the libraries and the communicators
  const size_t least = LossLogitsBytes(device.kind());
  if (device.kind() == DeviceKind::kCpu || options.reproducible) return least;
  EngineOptions tried = options;
  const auto plans_with = [&](size_t logits_bytes) {
    tried.logits_bytes = logits_bytes;
    return PlanMemory(tried, device);
  };
  const std::vector<MemoryPlan> with_least = plans_with(least);
  const auto fits = [&](size_t logits_bytes) {
    const std::vector<MemoryPlan> plans = plans_with(logits_bytes);
    for (size_t stage = 0; stage < plans.size(); ++stage) {
      const size_t bytes = plans[stage].device_bytes;
      if (bytes > with_least[stage].device_bytes &&
          static_cast<double>(bytes) > kUsableShare * static_cast<double>(memory_bytes)) {
        return false;
      }
    }
    return true;
  };
  size_t chosen = kMost;
  while (chosen > least && !fits(chosen)) chosen /= 2;
  return chosen;
}

StepPlans::StepPlans(const EngineOptions& options) {
  const Schedule schedule = ScheduleOf(options);
  placement = schedule.placement;
  training = *Lower(schedule);
  validation = *Lower(ForwardOnly(placement, options.microbatches));
  for (const auto& [count, of_count] : options.shorter_schedules) shorter[count] = *Lower(of_count);
}

EngineParts::EngineParts(const EngineOptions& options, const StepPlans& plans,
                         CommunicatorSet& communicators, Device& device)
    : coordinate(CoordinateOf(options.layout, options.rank)),
      cut{options.context_method, options.layout.cp, coordinate.cp, options.sequence_length},
      units(UnitsOfRank(options, plans.placement, coordinate)),
      arena("on the device", device.memory(),
            options.collective_memory != nullptr ? *options.collective_memory : device.memory()),
      staging("steps on the host", device.staging()),
      store(MakeStore(options, units, StoreKind::kDense, coordinate.pp, communicators, device,
                      arena, staging)),
      other_stores(
          MakeOtherStores(options, units, coordinate.pp, communicators, device, arena, staging)),
      stores(AllUnits(units), SplitsExperts(options), StoresOf(store, other_stores)),
      on_device(DeclareStep(options, cut, arena, "step/", ArenaPart::kCollective)),
      on_host(DeclareStep(options, cut, staging, "", ArenaPart::kLocal)),
      control(arena.Declare<StepControl>("step/control", 1)),
      stop(staging.Declare<double>("stop", 1)),
      experts(staging.Declare<ExpertTotals>("expert totals", 1)),
      documents(DocumentsOf(options, cut, device.kind()), device, arena, staging),
      optimizer(store, OptimizerOptionsOf(options), device, arena, staging),
      expert_optimizer(ExpertOptimizerOf(options, other_stores, device, arena, staging)),
      optimizers(store, optimizer, expert_optimizer.get(), FrozenOf(options, other_stores, device)),
      stage(Stage::Make(StageOptionsOf(options, device.kind(), plans, coordinate.pp), units, stores,
                        {.tp = *communicators.tp, .cp = *communicators.cp, .ep = *communicators.ep},
                        device, arena, staging)),
      generation(MakeGeneration(options, plans.placement, units, stores, communicators, device,
                                arena, staging)) {}

int64_t EngineParts::ShardCount() const {
  int64_t count = 0;
  for (const BucketStore* const one : stores.all()) count += one->shard().count;
  return count;
}

size_t EngineParts::StateBytes() const {
  size_t bytes = optimizer.StateBytes();
  if (expert_optimizer != nullptr) bytes += expert_optimizer->StateBytes();
  return bytes;
}

std::vector<MemoryPlan> PlanMemory(EngineOptions options, Device& device) {
  const StepPlans plans(options);
  const size_t nccl_bytes = device.kind() == DeviceKind::kCpu ? 0 : NcclBufferBytes(options.layout);
  const std::string nccl_line =
      nccl_bytes == 0 ? ""
                      : absl::StrCat("NCCL's own buffers, an estimate: ",
                                     HumanBytes(static_cast<double>(nccl_bytes)), "\n");
  std::vector<MemoryPlan> by_stage;
  for (int stage = 0; stage < options.layout.pp; ++stage) {
    options.rank = RankOf(options.layout, {.pp = stage});
    CommunicatorSet communicators = PlannedCommunicators(options.layout, options.rank);
    const EngineParts parts(options, plans, communicators, device);
    const size_t copies_bytes = options.copies_in_memory * parts.StateBytes();
    const std::string copies_line =
        copies_bytes == 0
            ? ""
            : absl::StrCat("copies in the node's memory: ", options.copies_in_memory, " shards, ",
                           HumanBytes(static_cast<double>(copies_bytes)), "\n");
    by_stage.push_back(
        {.device_bytes = parts.arena.total_bytes(),
         .host_bytes = parts.staging.total_bytes() + copies_bytes,
         .nccl_bytes = nccl_bytes,
         .text = absl::StrCat(parts.arena.PlanToString(), parts.staging.PlanToString(), copies_line,
                              nccl_line)});
  }
  return by_stage;
}

}  // namespace convene::worker

#include "worker_runtime/trainer/engine.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <iterator>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "tools/base/check.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/model/block.h"
#include "worker_runtime/model/initialize.h"
#include "worker_runtime/ops/documents.h"
#include "worker_runtime/ops/matmul.h"
#include "worker_runtime/parallel/context_attention.h"
#include "worker_runtime/schedule/chunk_layers.h"
#include "worker_runtime/schedule/generators.h"
#include "worker_runtime/schedule/lower.h"

namespace convene::worker {
namespace {

// Weights are made on the host in pieces of so many elements.
constexpr int64_t kInitialPiece = int64_t{1} << 22;
// A GPU that hangs must not delay the error about it.
constexpr absl::Duration kFarewellPatience = absl::Minutes(1);
// BucketCountMin's default is for NCCL; CPUs' messages are as fast from 4 MB on, and a model that
// they train is smaller than one such bucket.
constexpr int64_t kBucketCountMinOnCpu = 1'000'000;
// While a step runs on a device, stop_wanted is asked once in this time.
constexpr absl::Duration kStopPatience = absl::Milliseconds(20);

int64_t BucketCountOf(const EngineOptions& options, const Coordinate& coordinate, DeviceKind device,
                      bool has_shards) {
  if (has_shards) return kUnitBuckets;
  const bool is_default = options.bucket_count_min == 0 && device == DeviceKind::kCpu;
  return BucketCountMin(options.layout, coordinate,
                        is_default ? kBucketCountMinOnCpu : options.bucket_count_min);
}

Schedule ScheduleOf(const EngineOptions& options) {
  if (!options.schedule.ranks.empty()) return options.schedule;
  return *MakeSchedule("1f1b", options.layout.pp, 0, options.microbatches);
}

// A shard of one rank is all there is: what is whole needs no second place for it, unless that is
// in host memory.
bool Shards(const EngineOptions& options, const CommunicatorSet& communicators, int stage) {
  return options.zero_stage >= stage &&
         (communicators.dp->size() > 1 || options.offload_parameters);
}

// The units of the chunks that lie on the rank.
UnitsByChunk UnitsOfRank(const EngineOptions& options, const Schedule& schedule,
                         const Coordinate& coordinate) {
  const int count = static_cast<int>(schedule.placement.size());
  const std::vector<ModelChunk> chunks = ChunksOf(
      options.chunk_layers.empty() ? *CutLayers("", options.model.layers, count, /*head_cost=*/0)
                                   : options.chunk_layers,
      schedule.placement);
  UnitsByChunk units;
  for (int chunk = 0; chunk < count; ++chunk) {
    if (schedule.placement[chunk] != coordinate.pp) continue;
    units[chunk] = UnitsOf(options.model, chunks[chunk], options.layout.tp, coordinate.tp);
  }
  return units;
}

std::vector<UnitSpec> InOneRow(const UnitsByChunk& chunks) {
  std::vector<UnitSpec> units;
  for (const auto& [chunk, of_chunk] : chunks) absl::c_copy(of_chunk, std::back_inserter(units));
  return units;
}

}  // namespace

Engine::Engine(const EngineOptions& options, CommunicatorSet& communicators, Device& device)
    : options_(options),
      coordinate_(CoordinateOf(options.layout, options.rank)),
      cut_{options.context_method, options.layout.cp, coordinate_.cp, options.sequence_length},
      positions_(cut_.Positions()),
      communicators_(communicators),
      collectives_(communicators.OnDevice()),
      device_(device),
      schedule_(ScheduleOf(options)),
      microbatch_tokens_(int64_t{options.micro_batch_size} * cut_.local_length()),
      units_(UnitsOfRank(options, schedule_, coordinate_)),
      arena_("on the device", device.memory(),
             options.collective_memory != nullptr ? *options.collective_memory : device.memory()),
      staging_("steps on the host", device.staging()),
      store_(PlaceUnits(InOneRow(units_), options.layout.gradient_ranks(),
                        BucketCountOf(options, coordinate_, device.kind(),
                                      Shards(options, communicators, 2))),
             {.dtype = options.dtype,
              .reduce_dtype = options.reduce_dtype,
              .sums_over_tp = options.sequence_parallel,
              .reduces_at_end = coordinate_.pp > 0,
              .shards_gradients = Shards(options, communicators, 2),
              .shards_parameters = Shards(options, communicators, 3),
              .reshards_after_forward = options.reshard_after_forward,
              .overlaps = options.overlap_communication},
             {.dp = *communicators.dp,
              .dp_gather = *communicators.dp_gather,
              .dp_replicate = *communicators.dp_replicate,
              .tp = *communicators.tp,
              .embedding = communicators.embedding.get()},
             device, arena_, options.offload_parameters ? staging_ : arena_),
      on_device_(DeclareStep(arena_, "step/", ArenaPart::kCollective)),
      on_host_(DeclareStep(staging_, "", ArenaPart::kLocal)),
      control_(arena_.Declare<StepControl>("step/control", 1)),
      stop_(staging_.Declare<double>("stop", 1)),
      documents_(
          {.shape = ContextAttentionShape(
               cut_, MakeBlockShape(options.model, options.layout.tp, options.sequence_parallel,
                                    options.micro_batch_size, cut_.local_length(),
                                    options.deterministic, options.packed_documents)
                         .attention()),
           .cut = cut_,
           .needs_table = cut_.splits_heads() && NeedsDocumentTable(device.kind(), options.dtype),
           .microbatches = options.microbatches},
          device, arena_, staging_),
      done_(device.MakeEvent()) {
  const RankPlan training = PlanOf(schedule_);
  const RankPlan validation = PlanOf(ForwardOnly(schedule_.placement, options.microbatches));
  optimizer_ = std::make_unique<ShardedOptimizer>(
      store_,
      ShardedOptimizer::Options{.rule = options.update_rule,
                                .copies_for_checkpoints = options.copies_for_checkpoints,
                                .offloads = options.offload_optimizer,
                                .offloads_parameters = options.offload_parameters,
                                .overlaps = options.overlap_communication,
                                .timeout = options.timeout},
      device, arena_, staging_);
  stage_ = Stage::Make(
      {.config = options.model,
       .dtype = options.dtype,
       .recompute = options.recompute,
       .deterministic = options.deterministic,
       .packed_documents = options.packed_documents,
       .sequence_parallel = options.sequence_parallel,
       .overlaps = options.overlap_communication,
       .micro_batch_size = options.micro_batch_size,
       .sequence_length = options.sequence_length,
       .context_method = options.context_method,
       .saved_slots = std::max(training.saved.count, validation.saved.count),
       .deferred_slots = training.deferred.count,
       .head_slots = std::max(training.heads.count, validation.heads.count),
       .activation_slots = std::max(training.activations.count, validation.activations.count),
       .gradient_slots = training.gradients.count},
      units_, store_, *communicators.tp, *communicators.cp, device, arena_);
  PipelineStage* training_stage = stage_.get();
  if (options.cuda_graphs) {
    CONVENE_CHECK(options.layout.tp == 1 && options.layout.cp == 1 && options.zero_stage <= 1);
    graphed_stage_ = std::make_unique<GraphedStage>(
        *stage_, device,
        // A graph waits neither for collectives nor for the host.
        GraphedPasses{.ends_communicate = options.layout.dp > 1 || options.offload_optimizer});
    training_stage = graphed_stage_.get();
  }
  training_executor_ =
      std::make_unique<PipelineExecutor>(*training_stage, *communicators.pp, training);
}

// When the result of a step is there, its parameters are still being gathered. NCCL's memory is
// unmapped at once, where cudaFree would wait, so this waits. A CPU's work ends by the collectives'
// own timeouts.
Engine::~Engine() {
  const bool is_cpu = device_.kind() == DeviceKind::kCpu;
  (void)device_.Synchronize(is_cpu ? absl::InfiniteDuration()
                                   : std::min(options_.timeout, kFarewellPatience));
}

absl::StatusOr<std::unique_ptr<Engine>> Engine::Create(const EngineOptions& options,
                                                       CommunicatorSet& communicators,
                                                       Device& device) {
  SetDeterministicMatMul(options.deterministic);
  std::unique_ptr<Engine> engine(new Engine(options, communicators, device));
  CONVENE_RETURN_IF_ERROR(engine->Allocate());
  return engine;
}

MemoryPlan Engine::PlanMemory(const EngineOptions& options, CommunicatorSet& communicators,
                              Device& device) {
  const Engine planned(options, communicators, device);
  return {.device_bytes = planned.arena_.total_bytes(),
          .host_bytes = planned.staging_.total_bytes(),
          .text = absl::StrCat(planned.arena_.PlanToString(), planned.staging_.PlanToString())};
}

// No receive ahead: it would hold up compute() all the same.
RankPlan Engine::PlanOf(const Schedule& schedule) const {
  return (*Lower(schedule, /*receives_ahead=*/0))[coordinate_.pp];
}

Engine::StepMemory Engine::DeclareStep(Arena& arena, const char* prefix,
                                       ArenaPart totals_part) const {
  const int64_t tokens = microbatch_tokens_ * options_.microbatches;
  return {.inputs = arena.Declare<int32_t>(absl::StrCat(prefix, "tokens"), tokens),
          .targets = arena.Declare<int32_t>(absl::StrCat(prefix, "targets"), tokens),
          .scalars = arena.Declare<Inputs>(absl::StrCat(prefix, "scalars"), 1),
          .totals = arena.Declare<Totals>(absl::StrCat(prefix, "totals"), 1, totals_part)};
}

absl::Status Engine::Allocate() {
  CONVENE_RETURN_IF_ERROR(arena_.Build());
  CONVENE_RETURN_IF_ERROR(staging_.Build());
  optimizer_->Bind();
  stage_->Bind(&At(on_device_.totals)->loss);
  if (options_.fresh_weights) InitializeWeights();
  return device_.status();
}

void Engine::InitializeWeights() {
  CONVENE_CHECK(!is_in_flight_);
  std::vector<float> values;
  for (const PlacedParameter& slice : store_.placement().parameters) {
    for (int64_t first = 0; first < slice.count(); first += kInitialPiece) {
      const int64_t count = std::min(kInitialPiece, slice.count() - first);
      values.resize(count);
      InitializeParameter(slice, options_.seed, first, count, values.data());
      optimizer_->SetWeights(slice.flat_offset + first, values);
    }
  }
}

void Engine::Feed(const TokenBatch& batch, int microbatches, bool is_training) {
  CONVENE_CHECK(!is_in_flight_ && microbatches <= options_.microbatches);
  Stream& stream = device_.compute();
  const int64_t tokens = microbatch_tokens_ * microbatches;
  const int64_t rows = int64_t{options_.micro_batch_size} * microbatches;
  CutRows(positions_, options_.sequence_length, rows, batch.inputs, At(on_host_.inputs));
  CutRows(positions_, options_.sequence_length, rows, batch.targets, At(on_host_.targets));
  At(on_host_.scalars)->gradient_scale =
      is_training ? static_cast<float>(1.0 / static_cast<double>(batch.counted_targets)) : 0.0f;
  *At(stop_) = 0;
  device_.Copy(At(on_host_.inputs), At(on_device_.inputs), tokens * sizeof(int32_t), stream);
  device_.Copy(At(on_host_.targets), At(on_device_.targets), tokens * sizeof(int32_t), stream);
  device_.Copy(At(on_host_.scalars), At(on_device_.scalars), sizeof(Inputs), stream);
  device_.Zero(At(on_device_.totals), sizeof(Totals), stream);
  const float* const gradient_scale = &At(on_device_.scalars)->gradient_scale;
  stage_->SetBatch({.inputs = At(on_device_.inputs),
                    .targets = At(on_device_.targets),
                    .gradient_scale = is_training ? gradient_scale : nullptr,
                    .documents = documents_.Feed(batch.document_begin, microbatches)});
}

void Engine::PassOnStop() {
  if (options_.stop_wanted == nullptr || !options_.stop_wanted()) return;
  std::atomic_ref<double>(*At(stop_)).store(1, std::memory_order_relaxed);
}

// The wish to stop is copied as late as possible, behind the backward passes: a GPU runs that copy
// long after it was queued.
absl::Status Engine::AddUp() {
  Stream& stream = device_.compute();
  Totals* const totals = At(on_device_.totals);
  PassOnStop();
  device_.Copy(At(stop_), &totals->stop, sizeof(double), stream);
  // The loss is the same on all tensor-parallel ranks, so one of them adds it; each
  // context-parallel rank has that of its own tokens.
  if (coordinate_.tp != 0) device_.Zero(&totals->loss, sizeof(double), stream);
  CONVENE_RETURN_IF_ERROR(communicators_.world->AllReduce(
      Elements(totals, kTotals, DType::kFloat64), ReduceOp::kSum, stream));
  device_.Copy(totals, At(on_host_.totals), sizeof(Totals), stream);
  device_.Record(*done_, stream);
  return device_.status();
}

absl::Status Engine::QueueStep(const TokenBatch& batch, const UpdateParameters& update) {
  counted_targets_ = batch.counted_targets;
  if (counted_targets_ == 0) return QueueEmptyStep();
  Stream& stream = device_.compute();
  double* const sum_of_squares = &At(on_device_.totals)->sum_of_squares;
  At(on_host_.scalars)->factors = options_.update_rule->FactorsOf(update);
  Feed(batch, options_.microbatches, /*is_training=*/true);
  CONVENE_RETURN_IF_ERROR(training_executor_->Run(stream));
  CONVENE_RETURN_IF_ERROR(store_.FinishReducing());
  optimizer_->SumOwnedSquares(sum_of_squares);
  // They are there when the result is, which decides the host's update.
  if (options_.offload_optimizer) CONVENE_RETURN_IF_ERROR(optimizer_->CopyGradients());
  CONVENE_RETURN_IF_ERROR(AddUp());
  if (!options_.offload_optimizer) {
    DecideStep(sum_of_squares, options_.clip_grad_norm, At(control_), stream);
    CONVENE_RETURN_IF_ERROR(optimizer_->Update(&At(on_device_.scalars)->factors, At(control_)));
  }
  is_in_flight_ = true;
  return device_.status();
}

// The ranks still tell each other whether to stop.
absl::Status Engine::QueueEmptyStep() {
  CONVENE_CHECK(!is_in_flight_);
  *At(stop_) = 0;
  device_.Zero(At(on_device_.totals), sizeof(Totals), device_.compute());
  CONVENE_RETURN_IF_ERROR(AddUp());
  is_in_flight_ = true;
  return device_.status();
}

absl::Status Engine::Await() {
  absl::Status waited = absl::DeadlineExceededError("");
  for (absl::Duration left = options_.timeout; left > absl::ZeroDuration(); left -= kStopPatience) {
    waited = device_.Wait(*done_, std::min(left, kStopPatience));
    if (!absl::IsDeadlineExceeded(waited)) break;
    PassOnStop();
  }
  if (absl::IsDeadlineExceeded(waited)) {
    waited = absl::DeadlineExceededError(absl::StrCat(
        device_.description(), " has not finished its queued work within ",
        absl::FormatDuration(options_.timeout),
        ": it hangs, or a step takes so long and needs a longer --collective-timeout-seconds"));
  }
  // A collective's error about a peer is the cause: the device only saw that data did not arrive,
  // or, when the collective was aborted, ran on without them.
  for (Collective* collective : collectives_) {
    CONVENE_RETURN_IF_ERROR(collective->Check());
  }
  return waited;
}

absl::StatusOr<StepResult> Engine::AwaitStep() {
  CONVENE_CHECK(is_in_flight_);
  CONVENE_RETURN_IF_ERROR(Await());
  is_in_flight_ = false;
  const Totals& totals = *At(on_host_.totals);
  const double norm = std::sqrt(totals.sum_of_squares);
  const bool is_empty = counted_targets_ == 0;
  const StepControl control = ControlStep(norm, options_.clip_grad_norm);
  const bool skips = is_empty || control.skip != 0;
  if (options_.offload_optimizer && !skips) {
    CONVENE_RETURN_IF_ERROR(optimizer_->UpdateOnHost(At(on_host_.scalars)->factors, control));
  }
  return StepResult{.loss = is_empty ? 0 : totals.loss / static_cast<double>(counted_targets_),
                    .grad_norm = norm,
                    .stop_requested = totals.stop > 0,
                    .counted_targets = counted_targets_,
                    .skipped = skips};
}

absl::StatusOr<StepResult> Engine::TrainStep(const TokenBatch& batch,
                                             const UpdateParameters& update) {
  CONVENE_RETURN_IF_ERROR(QueueStep(batch, update));
  return AwaitStep();
}

absl::StatusOr<std::vector<char>> Engine::CopyParameters() {
  CONVENE_CHECK(!is_in_flight_);
  const int64_t count = placement().flat_count;
  std::vector<char> bytes(count * SizeOf(options_.dtype));
  CONVENE_RETURN_IF_ERROR(
      store_.CopyParameters(Elements(bytes.data(), static_cast<size_t>(count), options_.dtype)));
  CONVENE_RETURN_IF_ERROR(device_.Synchronize(options_.timeout));
  return bytes;
}

absl::StatusOr<ForwardResult> Engine::ForwardLoss(const TokenBatch& batch, int microbatches) {
  Feed(batch, microbatches, /*is_training=*/false);
  const RankPlan plan = PlanOf(ForwardOnly(schedule_.placement, microbatches));
  PipelineExecutor executor(*stage_, *communicators_.pp, plan);
  CONVENE_RETURN_IF_ERROR(executor.Run(device_.compute()));
  CONVENE_RETURN_IF_ERROR(AddUp());
  CONVENE_RETURN_IF_ERROR(Await());
  const Totals& totals = *At(on_host_.totals);
  return ForwardResult{.loss = totals.loss, .stop_requested = totals.stop > 0};
}

}  // namespace convene::worker

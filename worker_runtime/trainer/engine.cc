#include "worker_runtime/trainer/engine.h"

#include <algorithm>
#include <atomic>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "tools/base/check.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/device/host_queue.h"
#include "worker_runtime/device/op_profile.h"
#include "worker_runtime/model/initialize.h"
#include "worker_runtime/ops/binned_sum.h"
#include "worker_runtime/ops/matmul.h"
#include "worker_runtime/schedule/generators.h"
#include "worker_runtime/schedule/lower.h"

namespace convene::worker {
namespace {

// A GPU that hangs must not delay the error about it.
constexpr absl::Duration kFarewellPatience = absl::Minutes(1);
// While a step runs on a device, stop_wanted is asked once in this time.
constexpr absl::Duration kStopPatience = absl::Milliseconds(20);

}  // namespace

Engine::Engine(const EngineOptions& options, const StepPlans& plans, CommunicatorSet& communicators,
               Device& device)
    : options_(options),
      placement_(plans.placement),
      communicators_(communicators),
      collectives_(communicators.OnDevice()),
      device_(device),
      parts_(options, plans, communicators, device),
      positions_(parts_.cut.Positions()),
      done_(device.MakeEvent()) {
  PipelineStage* training_stage = parts_.stage.get();
  if (options.cuda_graphs) {
    CONVENE_CHECK(options.layout.tp == 1 && options.layout.cp == 1 && options.zero_stage <= 1 &&
                  !options.reproducible);
    graphed_stage_ = std::make_unique<GraphedStage>(
        *training_stage, device,
        // A graph waits neither for collectives nor for the host.
        GraphedPasses{.ends_communicate = options.layout.dp > 1 || options.offload_optimizer});
    training_stage = graphed_stage_.get();
  }
  const auto add = [&](int microbatches, const std::vector<RankPlan>& of_ranks) {
    training_executors_.try_emplace(microbatches, *training_stage, *communicators.pp,
                                    of_ranks[parts_.coordinate.pp]);
  };
  add(options.microbatches, plans.training);
  for (const auto& [microbatches, of_ranks] : plans.shorter) add(microbatches, of_ranks);
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
  std::unique_ptr<Engine> engine(new Engine(options, StepPlans(options), communicators, device));
  CONVENE_RETURN_IF_ERROR(engine->Allocate());
  return engine;
}

absl::Status Engine::Allocate() {
  absl::Status built = parts_.arena.Build();
  built.Update(parts_.staging.Build());
  if (absl::IsResourceExhausted(built)) {
    return Annotate(built,
                    "too little memory (a smaller micro-batch, --recompute and more ranks need "
                    "less)");
  }
  CONVENE_RETURN_IF_ERROR(built);
  CONVENE_RETURN_IF_ERROR(parts_.optimizers.Bind());
  StepTotals* const totals = At(parts_.on_device.totals);
  parts_.stage->Bind(&totals->loss, options_.reproducible ? totals->exact[1] : nullptr);
  if (parts_.generation != nullptr) parts_.generation->Bind();
  if (options_.fresh_weights) CONVENE_RETURN_IF_ERROR(InitializeWeights());
  return device_.status();
}

absl::Status Engine::SetWeights(WeightSet set, MakeWeights make,
                                absl::FunctionRef<void(double done)> tell,
                                absl::FunctionRef<absl::Status()> filled) {
  CONVENE_CHECK(!is_in_flight_);
  int64_t made = 0;
  return parts_.optimizers.SetWeights(
      set,
      [&](const ParameterSlice& slice, int64_t first, absl::Span<float> values) {
        make(slice, first, values);
        made += static_cast<int64_t>(values.size());
        tell(static_cast<double>(made) / static_cast<double>(parts_.ShardCount()));
      },
      filled);
}

absl::Status Engine::InitializeWeights(WeightSet set, absl::FunctionRef<void(double done)> tell) {
  return SetWeights(
      set,
      [&](const ParameterSlice& slice, int64_t first, absl::Span<float> values) {
        Stream& host = device_.host();
        RunIn(host, [&] {
          const OpScope scope(host, "InitializeParameter");
          InitializeParameter(slice, options_.seed, first, static_cast<int64_t>(values.size()),
                              values.data());
        });
        device_.Synchronize(absl::InfiniteDuration()).IgnoreError();  // it stays the device's
      },
      tell, [] { return absl::OkStatus(); });
}

absl::Status Engine::LoadWeights(WeightSet set, const StateSource& source,
                                 absl::FunctionRef<void(double done)> tell,
                                 absl::FunctionRef<absl::Status(const absl::Status& read)> agree) {
  absl::Status read;
  return SetWeights(
      set,
      [&](const ParameterSlice& slice, int64_t first, absl::Span<float> values) {
        if (!read.ok()) return;
        const TensorPiece piece = {
            .name = slice.name,
            .global_shape = {slice.global_shape.begin(), slice.global_shape.end()},
            .local_box = {{slice.offset.begin(), slice.offset.end()},
                          {slice.extent.begin(), slice.extent.end()}},
            .flat_begin = first,
            .flat_count = static_cast<int64_t>(values.size())};
        read = source.Read({{piece, values}});
      },
      tell, [&] { return agree(read); });
}

void Engine::Feed(const TokenBatch& batch, int microbatches, bool is_training) {
  CONVENE_CHECK(!is_in_flight_ && microbatches <= options_.microbatches);
  Stream& stream = device_.compute();
  const int64_t rows = int64_t{options_.micro_batch_size} * microbatches;
  const int64_t tokens = rows * parts_.cut.local_length();
  CutRows(positions_, options_.sequence_length, rows, batch.inputs, At(parts_.on_host.inputs));
  CutRows(positions_, options_.sequence_length, rows, batch.targets, At(parts_.on_host.targets));
  At(parts_.on_host.scalars)->gradient_scale =
      is_training ? static_cast<float>(1.0 / static_cast<double>(batch.counted_targets)) : 0.0f;
  *At(parts_.stop) = 0;
  device_.Copy(At(parts_.on_host.inputs), At(parts_.on_device.inputs), tokens * sizeof(int32_t),
               stream);
  device_.Copy(At(parts_.on_host.targets), At(parts_.on_device.targets), tokens * sizeof(int32_t),
               stream);
  float* const gradient_scale = &At(parts_.on_device.scalars)->gradient_scale;
  device_.Copy(&At(parts_.on_host.scalars)->gradient_scale, gradient_scale, sizeof(float), stream);
  device_.Zero(At(parts_.on_device.totals), sizeof(StepTotals), stream);
  parts_.stage->SetBatch({.inputs = At(parts_.on_device.inputs),
                          .targets = At(parts_.on_device.targets),
                          .token_numbers = is_training ? FeedTokenNumbers(batch, rows) : nullptr,
                          .gradient_scale = is_training ? gradient_scale : nullptr,
                          .documents = parts_.documents.Feed(batch.document_begin, microbatches),
                          .references = FeedReferences(batch, rows),
                          .answer_losses = At(parts_.on_device.answer_losses),
                          .rewards = At(parts_.on_device.totals)->rewards});
}

const double* Engine::FeedReferences(const TokenBatch& batch, int64_t rows) {
  const ArenaBlock<double>& losses = parts_.on_device.answer_losses;
  if (losses.size() == 0) return nullptr;
  device_.Zero(At(losses), losses.size() * sizeof(double), device_.compute());
  if (batch.references == nullptr) return nullptr;
  std::copy_n(batch.references, rows, At(parts_.on_host.references));
  double* const references = At(parts_.on_device.references);
  device_.Copy(At(parts_.on_host.references), references, rows * sizeof(double), device_.compute());
  return references;
}

const int64_t* Engine::FeedTokenNumbers(const TokenBatch& batch, int64_t rows) {
  const ArenaBlock<int64_t>& numbers = parts_.on_device.token_numbers;
  if (numbers.size() == 0) return nullptr;
  CONVENE_CHECK(batch.samples != nullptr);
  int64_t* next = At(parts_.on_host.token_numbers);
  for (int64_t row = 0; row < rows; ++row) {
    for (const int32_t position : positions_) {
      *next++ = batch.samples[row] * options_.sequence_length + position;
    }
  }
  device_.Copy(At(parts_.on_host.token_numbers), At(numbers),
               rows * positions_.size() * sizeof(int64_t), device_.compute());
  return At(numbers);
}

void Engine::PassOnStop() {
  if (options_.stop_wanted == nullptr || !options_.stop_wanted()) return;
  std::atomic_ref<double>(*At(parts_.stop)).store(1, std::memory_order_relaxed);
}

// The wish to stop is copied as late as possible, behind the backward passes: a GPU runs that copy
// long after it was queued.
absl::Status Engine::AddUp() {
  Stream& stream = device_.compute();
  StepTotals* const totals = At(parts_.on_device.totals);
  PassOnStop();
  device_.Copy(At(parts_.stop), &totals->stop, sizeof(double), stream);
  // The loss and the rewards are the same on all tensor-parallel ranks, so one of them adds them;
  // each context-parallel rank has the loss of its own tokens.
  // The experts' losses and loads likewise.
  const ExpertTotals experts = parts_.stage->TakeExpertTotals();
  if (parts_.coordinate.tp != 0) {
    device_.Zero(&totals->loss, sizeof(totals->loss) + sizeof(totals->router), stream);
    device_.Zero(totals->rewards, sizeof(totals->rewards), stream);
    device_.Zero(totals->exact[1], sizeof(totals->exact) - sizeof(totals->exact[0]), stream);
  } else if (options_.model.experts.count > 0) {
    *At(parts_.experts) = experts;
    device_.Copy(At(parts_.experts), &totals->experts, sizeof(ExpertTotals), stream);
  }
  const size_t count = options_.reproducible ? sizeof(StepTotals) / sizeof(double) : kPlainTotals;
  CONVENE_RETURN_IF_ERROR(communicators_.world->AllReduce(Elements(totals, count, DType::kFloat64),
                                                          ReduceOp::kSum, stream));
  if (options_.reproducible) ExactRound(4, totals->exact[0], &totals->sum_of_squares, stream);
  device_.Copy(totals, At(parts_.on_host.totals), sizeof(StepTotals), stream);
  device_.Record(*done_, stream);
  return device_.status();
}

StepLimits Engine::SummedLimits() const {
  return {.loss = limits_.loss * static_cast<double>(counted_targets_),
          .gradient_norm = limits_.gradient_norm};
}

absl::Status Engine::QueueStep(const TokenBatch& batch, const UpdateParameters& update,
                               const StepLimits& limits) {
  counted_targets_ = batch.counted_targets;
  limits_ = limits;
  if (counted_targets_ == 0) return QueueEmptyStep();
  Stream& stream = device_.compute();
  StepTotals* const totals = At(parts_.on_device.totals);
  At(parts_.on_host.scalars)->factors = options_.update_rule->FactorsOf(update);
  const int microbatches = batch.microbatches > 0 ? batch.microbatches : options_.microbatches;
  const auto executor = training_executors_.find(microbatches);
  CONVENE_CHECK(executor != training_executors_.end());
  Feed(batch, microbatches, /*is_training=*/true);
  CONVENE_RETURN_IF_ERROR(executor->second.Run(stream));
  CONVENE_RETURN_IF_ERROR(parts_.stores.FinishReducing());
  parts_.optimizers.SumOwnedSquares(options_.reproducible ? totals->exact[0]
                                                          : &totals->sum_of_squares);
  // Not with the batch: the last update, beside this step's passes, still read its own factors.
  UpdateRule::Factors* const factors = &At(parts_.on_device.scalars)->factors;
  device_.Copy(&At(parts_.on_host.scalars)->factors, factors, sizeof(*factors), stream);
  // They are there when the result is, which decides the host's update.
  if (options_.offload_optimizer) CONVENE_RETURN_IF_ERROR(parts_.optimizers.CopyGradients());
  CONVENE_RETURN_IF_ERROR(AddUp());
  if (!options_.offload_optimizer) {
    DecideStep(&totals->sum_of_squares, &totals->loss, options_.clip_grad_norm, SummedLimits(),
               At(parts_.control), stream);
    CONVENE_RETURN_IF_ERROR(parts_.optimizers.Update(factors, At(parts_.control)));
  }
  is_in_flight_ = true;
  return device_.status();
}

// The ranks still tell each other whether to stop.
absl::Status Engine::QueueEmptyStep() {
  CONVENE_CHECK(!is_in_flight_);
  *At(parts_.stop) = 0;
  device_.Zero(At(parts_.on_device.totals), sizeof(StepTotals), device_.compute());
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
  const StepTotals& totals = *At(parts_.on_host.totals);
  const double norm = std::sqrt(totals.sum_of_squares);
  const bool is_empty = counted_targets_ == 0;
  const StepControl control =
      ControlStep(norm, totals.loss, options_.clip_grad_norm, SummedLimits());
  const bool skips = is_empty || control.skip != SkipReason::kNone;
  if (options_.offload_optimizer && !skips) {
    CONVENE_RETURN_IF_ERROR(
        parts_.optimizers.UpdateOnHost(At(parts_.on_host.scalars)->factors, control));
  }
  return StepResult{.loss = is_empty ? 0 : totals.loss / static_cast<double>(counted_targets_),
                    .grad_norm = norm,
                    .stop_requested = totals.stop > 0,
                    .counted_targets = counted_targets_,
                    .skipped = skips,
                    .why = is_empty ? SkipReason::kNone : control.skip,
                    .limits = limits_,
                    .router_losses = {totals.router[0], totals.router[1]},
                    .experts = totals.experts,
                    .rewards = {totals.rewards[0], totals.rewards[1]}};
}

absl::StatusOr<ForwardResult> Engine::ForwardLoss(const TokenBatch& batch, int microbatches) {
  Feed(batch, microbatches, /*is_training=*/false);
  CONVENE_ASSIGN_OR_RETURN(const std::vector<RankPlan> plans,
                           Lower(ForwardOnly(placement_, microbatches)));
  PipelineExecutor executor(*parts_.stage, *communicators_.pp, plans[parts_.coordinate.pp]);
  CONVENE_RETURN_IF_ERROR(executor.Run(device_.compute()));
  CONVENE_RETURN_IF_ERROR(AddUp());
  CONVENE_RETURN_IF_ERROR(Await());
  const StepTotals& totals = *At(parts_.on_host.totals);
  return ForwardResult{.loss = totals.loss,
                       .stop_requested = totals.stop > 0,
                       .rewards = {totals.rewards[0], totals.rewards[1]}};
}

absl::StatusOr<std::vector<double>> Engine::References(const TokenBatch& batch, int microbatches) {
  CONVENE_RETURN_IF_ERROR(ForwardLoss(batch, microbatches).status());
  const ArenaBlock<double>& losses = parts_.on_host.answer_losses;
  device_.Copy(At(parts_.on_device.answer_losses), At(losses), losses.size() * sizeof(double),
               device_.compute());
  CONVENE_RETURN_IF_ERROR(device_.Synchronize(options_.timeout));
  std::vector<double> references(int64_t{options_.micro_batch_size} * microbatches, 0.0);
  // The ranks of these groups have the same; without the head a rank has zeros.
  if (parts_.coordinate.tp != 0 || parts_.coordinate.cp != 0) return references;
  for (size_t i = 0; i < references.size(); ++i) {
    references[i] = At(losses)[2 * i + 1] - At(losses)[2 * i];
  }
  return references;
}

}  // namespace convene::worker

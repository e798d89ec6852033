#include "worker_runtime/trainer/engine.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "tools/base/status_macros.h"
#include "worker_runtime/model/initialize.h"
#include "worker_runtime/optimizer/clip.h"

namespace convene::worker {

Engine::Engine(const EngineOptions& options, CommunicatorSet& communicators)
    : options_(options),
      coordinate_(CoordinateOf(options.layout, options.rank)),
      communicators_(communicators),
      table_(BuildParameterTable(options.model, options.layout, coordinate_)),
      train_actions_(
          OneForwardOneBackward(options.layout.pp, coordinate_.pp, options.microbatches)),
      arena_("trainer"),
      parameters_memory_(arena_.Declare<float>("parameters", table_.flat_count)),
      gradients_memory_(arena_.Declare<float>("gradients", table_.flat_count)) {
  const int slots = ActivationSlots(options.layout.pp, coordinate_.pp, options.microbatches);
  optimizer_ = std::make_unique<ShardedOptimizer>(table_, *communicators.dp, arena_);
  stage_ = std::make_unique<Stage>(Stage::Options{.config = options.model,
                                                  .layout = options.layout,
                                                  .coordinate = coordinate_,
                                                  .micro_batch_size = options.micro_batch_size,
                                                  .sequence_length = options.sequence_length,
                                                  .slots = slots},
                                   table_, *communicators.tp, arena_);
  executor_ = std::make_unique<PipelineExecutor>(*stage_, *communicators.pp, slots);
}

absl::StatusOr<std::unique_ptr<Engine>> Engine::Create(const EngineOptions& options,
                                                       CommunicatorSet& communicators) {
  std::unique_ptr<Engine> engine(new Engine(options, communicators));
  CONVENE_RETURN_IF_ERROR(engine->Allocate());
  return engine;
}

absl::Status Engine::Allocate() {
  CONVENE_RETURN_IF_ERROR(arena_.Build());
  parameters_ = arena_.View(parameters_memory_);
  gradients_ = arena_.View(gradients_memory_);
  for (const ParameterSlice& slice : table_.slices) {
    InitializeParameter(slice, options_.seed, parameters_.data() + slice.flat_offset);
  }
  optimizer_->Bind(parameters_, gradients_);
  stage_->Bind(parameters_.data(), gradients_.data());
  return absl::OkStatus();
}

// Both ends of the pipeline hold the tied table; each saw only its own use of it.
absl::Status Engine::SumTiedGradients(Stream& stream) {
  if (!options_.model.tied_embeddings || communicators_.embedding == nullptr ||
      communicators_.embedding->size() == 1) {
    return absl::OkStatus();
  }
  const int64_t offset = coordinate_.pp == 0 ? table_.embedding : table_.head;
  const int64_t count =
      int64_t{options_.model.vocabulary_size} / options_.layout.tp * options_.model.hidden_size;
  return communicators_.embedding->AllReduce(gradients_.subspan(offset, count), ReduceOp::kSum,
                                             stream);
}

absl::StatusOr<StepResult> Engine::TrainStep(const TokenBatch& batch, AdamWParameters adam,
                                             bool stop, Stream& stream) {
  std::fill(gradients_.begin(), gradients_.end(), 0.0f);
  stage_->SetBatch(batch);
  CONVENE_RETURN_IF_ERROR(executor_->Run(train_actions_, stream));
  CONVENE_RETURN_IF_ERROR(SumTiedGradients(stream));
  CONVENE_RETURN_IF_ERROR(optimizer_->ReduceGradients(stream));

  // One all-reduce for all that every rank must agree on. The loss is the same on all
  // tensor-parallel ranks: one of them speaks.
  double totals[] = {optimizer_->OwnedSumOfSquares(stream),
                     coordinate_.tp == 0 ? stage_->loss_sum() * batch.gradient_scale : 0.0,
                     stop ? 1.0 : 0.0};
  CONVENE_RETURN_IF_ERROR(
      communicators_.world->AllReduce(absl::MakeSpan(totals), ReduceOp::kSum, stream));
  StepResult result{
      .loss = totals[1], .grad_norm = std::sqrt(totals[0]), .stop_requested = totals[2] > 0};
  ClipDecision clip = DecideClip(options_.clip_grad_norm, result.grad_norm, adam.step);
  if (clip.skip_step) {
    result.skipped = std::move(clip.why);
    return result;
  }
  adam.gradient_scale = clip.gradient_scale;
  optimizer_->Update(adam, stream);
  CONVENE_RETURN_IF_ERROR(optimizer_->GatherParameters(stream));
  return result;
}

absl::StatusOr<double> Engine::ForwardLoss(const TokenBatch& batch, int microbatches,
                                           Stream& stream) {
  stage_->SetBatch(batch);
  CONVENE_RETURN_IF_ERROR(
      executor_->Run(ForwardOnly(options_.layout.pp, coordinate_.pp, microbatches), stream));
  double loss = coordinate_.tp == 0 ? stage_->loss_sum() : 0.0;
  CONVENE_RETURN_IF_ERROR(
      communicators_.world->AllReduce(absl::MakeSpan(&loss, 1), ReduceOp::kSum, stream));
  return loss;
}

}  // namespace convene::worker

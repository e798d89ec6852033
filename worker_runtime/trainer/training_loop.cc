#include "worker_runtime/trainer/training_loop.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "spdlog/spdlog.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/checkpoint/step_directory.h"
#include "worker_runtime/checkpointing/agree.h"
#include "worker_runtime/checkpointing/choose_checkpoint.h"
#include "worker_runtime/contract/progress_page.h"
#include "worker_runtime/model/shape_text.h"
#include "worker_runtime/optimizer/learning_rate.h"
#include "worker_runtime/trainer/references.h"
#include "worker_runtime/trainer/same_data.h"
#include "worker_runtime/trainer/setup.h"

namespace convene::worker {
namespace {

constexpr char kCopiesPhase[] = "copies in memory";

}  // namespace

// A run that goes on with other sums or micro batches would leave the curve.
std::string Training::SamplesText() const {
  if (!options_.reproducible) return data_.training.SamplesText();
  return absl::StrCat(data_.training.SamplesText(), ", --reproducible in micro batches of ",
                      CutOf(options_, layout_).micro_batch_size);
}

// Of any rank's device.
absl::StatusOr<int64_t> Training::LeastMemory() {
  double negative = -static_cast<double>(device_.memory_bytes());
  CONVENE_RETURN_IF_ERROR(
      communicators_.host->AllReduce(absl::MakeSpan(&negative, 1), ReduceOp::kMax, host_stream_));
  return static_cast<int64_t>(-negative);
}

absl::Status Training::CreateReporter() {
  if (contract_.rank != 0) return absl::OkStatus();
  if (reporter_ != nullptr) return reporter_->GoBack(step_);
  CONVENE_ASSIGN_OR_RETURN(reporter_,
                           Reporter::Create(options_, contract_, layout_, step_, clock_));
  reporter_->SetGpu(device_.description());
  return absl::OkStatus();
}

absl::Status Training::Resume(const std::optional<Restored>& resumed) {
  const CheckpointInfo info =
      resumed.has_value() ? resumed->info : CheckpointInfo{.began_with = BeganWith(options_)};
  step_ = info.step;
  first_weights_.longest_text = std::max(first_weights_.longest_text, info.longest_text);
  began_with_ = info.began_with;
  skipped_steps_ = SkippedSteps(options_.max_skipped_steps, info.updates);
  SpikeGuard guard(options_.spikes);
  CONVENE_RETURN_IF_ERROR(guard.Restore(info.spike_guard));
  if (info.samples_consumed != SamplesAfter(ramp_, step_) + guard.skipped_samples()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the checkpoint has consumed ", info.samples_consumed, " samples in ", step_,
        " steps; with --global-batch-size ", options_.global_batch_size,
        " and --rampup-batch-size as they are the sample order would break. Give those that it "
        "was trained with"));
  }
  guard.KeepRollbacks(spike_guard_);
  spike_guard_ = guard;
  return absl::OkStatus();
}

// All ranks saw the same spike. Where a process dies from here on, the checkpoint's own steps lead
// to the same spike, and so to the same samples.
absl::Status Training::GoBack() {
  CONVENE_RETURN_IF_ERROR(saver_->Finish(step_));
  progress_.Tell(step_, "rollback");  // It reads a checkpoint, which takes longer than a step.
  if (replicas_ != nullptr) CONVENE_RETURN_IF_ERROR(replicas_->Finish());
  const int64_t spike = step_;
  saver_.reset();
  op_reports_.reset();
  ready_.reset();
  engine_.reset();
  CONVENE_RETURN_IF_ERROR(Prepare(/*goes_back=*/true));
  spike_guard_.WentBack(SamplesAfter(ramp_, spike) - SamplesAfter(ramp_, step_));
  if (reporter_ == nullptr) return absl::OkStatus();
  reporter_->SetRollbacks(spike_guard_.rollbacks());
  reporter_->Say(
      absl::StrCat("rolled back: step ", spike, " was a spike, so the training goes on after step ",
                   step_, ", past the samples that led there; ", spike_guard_.rollbacks(),
                   " of at most ", options_.spikes.max_rollbacks, " rollbacks (--max-rollbacks)"));
  return absl::OkStatus();
}

absl::Status Training::Prepare(bool goes_back) {
  if (!goes_back) {
    CONVENE_RETURN_IF_ERROR(CheckSameData(data_, *communicators_.host, host_stream_));
  }
  EngineOptions engine_options =
      MakeEngineOptions(options_, layout_, contract_.rank, device_.kind());
  CONVENE_ASSIGN_OR_RETURN(const int64_t memory_bytes, LeastMemory());
  engine_options.logits_bytes = ChooseLogitsBytes(engine_options, memory_bytes, device_);
  engine_options.collective_memory = collective_memory_;
  engine_options.fresh_weights = false;
  engine_options.stop_wanted = [this] { return WantsStop(); };
  CONVENE_ASSIGN_OR_RETURN(engine_, Engine::Create(engine_options, communicators_, device_));
  const JobIdentity job{.name = contract_.run_id,
                        .data = DataIdentity(options_, data_.training),
                        .samples = SamplesText(),
                        .tokenizer = data_.tokenizer,
                        .is_restart = contract_.is_restart() || goes_back};
  if (!goes_back) {
    CONVENE_ASSIGN_OR_RETURN(
        checkpoint_lock_,
        ClaimCheckpointDirectory(options_, job, *communicators_.checkpoint, host_stream_));
    CONVENE_RETURN_IF_ERROR(CreateReplicas());
    CONVENE_ASSIGN_OR_RETURN(first_weights_,
                             FindFirstWeights(options_, *communicators_.checkpoint, host_stream_));
  }
  if (options_.preference_beta > 0 && !goes_back) CONVENE_RETURN_IF_ERROR(FindAllReferences());
  // The copies in memory hold what led to the spike. Checkpoints of later steps, which an earlier
  // start could not read, hold what has not come yet.
  CONVENE_ASSIGN_OR_RETURN(
      const std::optional<Restored> resumed,
      RestoreCheckpoint(options_, job, engine_->optimizer(), *communicators_.checkpoint,
                        host_stream_, goes_back ? nullptr : replicas_.get(),
                        goes_back ? step_ : kAnyStep));
  const bool is_from_memory = resumed.has_value() && resumed->path.empty();
  if (replicas_ != nullptr) {
    CONVENE_RETURN_IF_ERROR(replicas_->BeginGeneration(is_from_memory));
  }
  // The checkpoint that was the newest when the run began.
  if (resumed.has_value() && StepIn(options_.init_from, resumed->info.base).has_value()) {
    first_weights_.weights = resumed->info.base;
  }
  const MonotonicTime before = clock_.Now();
  CONVENE_RETURN_IF_ERROR(MakeWeights(resumed.has_value()));
  const absl::Duration weights_time = clock_.Now() - before;
  CONVENE_RETURN_IF_ERROR(Resume(resumed));
  CONVENE_RETURN_IF_ERROR(
      Agree(CreateReporter(), "open the metrics file", *communicators_.checkpoint, host_stream_));
  op_reports_.emplace(options_, layout_, *communicators_.host, reporter_.get(), progress_, device_,
                      step_);
  CONVENE_RETURN_IF_ERROR(Agree(op_reports_->Open(), "open the trace's file",
                                *communicators_.checkpoint, host_stream_));
  const bool is_own =
      resumed.has_value() && resumed->path == StepDirectory(options_.checkpoint_dir, step_);
  saver_ = std::make_unique<CheckpointSaver>(
      CheckpointSaver::Options{.directory = options_.checkpoint_dir,
                               .keep = options_.checkpoint_keep,
                               .failures_max = options_.max_failed_checkpoints,
                               .in_background = SavesInBackground(options_),
                               .saved_step = is_own ? step_ : -1,
                               .tokenizer_files = data_.tokenizer_files,
                               .lock = checkpoint_lock_.has_value() ? &*checkpoint_lock_ : nullptr},
      *communicators_.checkpoint, progress_, reporter_.get(), clock_);
  if (contract_.rank == 0) SayHowItBegins(resumed, weights_time);
  return absl::OkStatus();
}

void Training::SayHowItBegins(const std::optional<Restored>& resumed, absl::Duration weights_time) {
  reporter_->SetRollbacks(spike_guard_.rollbacks());
  if (resumed.has_value()) {
    const bool is_from_memory = resumed->path.empty();
    reporter_->Say(absl::StrCat("resumed after step ", step_,
                                is_from_memory ? " from the nodes' memory" : "", ", saved by ",
                                resumed->info.layout));
    if (!is_from_memory) reporter_->Checkpoint(step_, resumed->path);
  } else if (!first_weights_.weights.empty()) {
    reporter_->Say(absl::StrFormat("begins with the weights of %s, read in %.1f s",
                                   first_weights_.weights, absl::ToDoubleSeconds(weights_time)));
  }
}

// Tenths alone: the agent learns the limits of 16 phases at most.
absl::Status Training::MakeWeights(bool resumed) {
  const auto tell = [this](double done) {
    progress_.Tell(0, absl::StrCat("weights ", 10 * static_cast<int>(10 * done), " %"));
  };
  return MakeFirstWeights(options_, first_weights_, resumed, *engine_, tell,
                          *communicators_.checkpoint, host_stream_);
}

// Of pairs of answers.
absl::Status Training::FindAllReferences() {
  const auto tell = [this](double done) {
    progress_.Tell(0, absl::StrCat("references ", 10 * static_cast<int>(10 * done), " %"));
  };
  const auto make_weights = [this] { return MakeWeights(/*resumed=*/false); };
  CONVENE_ASSIGN_OR_RETURN(
      references_,
      FindReferences(KeptReferencesOf(options_, first_weights_, data_.training), loader_, *engine_,
                     make_weights, tell, *communicators_.host, host_stream_));
  loader_.SetReferences(references_);
  validation_.SetReferences(references_);
  return absl::OkStatus();
}

absl::Status Training::CreateReplicas() {
  if (options_.replicate_every == 0) return absl::OkStatus();
  CONVENE_ASSIGN_OR_RETURN(replicas_,
                           PeerReplicas::Create({.memory_path = contract_.memory_path,
                                                 .replicas = options_.replicas,
                                                 .every = options_.replicate_every,
                                                 .epoch = contract_.epoch.value(),
                                                 .local_rank = contract_.local_rank,
                                                 .local_world_size = contract_.local_world_size,
                                                 .node = contract_.group_rank,
                                                 .topology = contract_.topology,
                                                 .max_nodes = contract_.max_nodes,
                                                 .timeout = 2 * options_.collective_timeout},
                                                *communicators_.replicas, device_));
  return absl::OkStatus();
}

// Where copies in memory are due after the finished step, or before the first one.
absl::Status Training::Replicate() {
  if (replicas_ == nullptr || engine_->is_in_flight() || !replicas_->IsDue(step_)) {
    return absl::OkStatus();
  }
  const bool is_first = replicas_->is_empty();
  progress_.Tell(step_, kCopiesPhase);
  CONVENE_RETURN_IF_ERROR(replicas_->Stage(Info(), engine_->optimizer()));
  if (is_first && reporter_ != nullptr) reporter_->Say(replicas_->Description());
  return absl::OkStatus();
}

double Training::LearningRate(int64_t step) const {
  return LearningRateAt(RateScheduleOf(options_), step);
}

// Queues the next step, when none is in flight. The last step's result is known, since Adam counts
// the steps that changed the weights. While a GPU works, the host fetches the tokens of the step
// after.
absl::Status Training::QueueStep() {
  const UpdateParameters update{.learning_rate = LearningRate(step_ + 1),
                                .beta1 = options_.beta1,
                                .beta2 = options_.beta2,
                                .epsilon = options_.epsilon,
                                .weight_decay = options_.weight_decay,
                                .momentum = options_.momentum,
                                .nesterov = options_.nesterov,
                                .step = skipped_steps_.updates() + 1};
  const auto batch_of = [this](int64_t step) {
    // The steps alone say how large a batch is, not the samples that a rollback left out.
    const int64_t samples = BatchAt(ramp_, SamplesAfter(ramp_, step));
    return step_facts_.Data([&] { return loader_.Training(FirstSample(step), samples); });
  };
  CONVENE_RETURN_IF_ERROR(op_reports_->Watch(step_));
  if (!ready_.has_value()) {
    CONVENE_ASSIGN_OR_RETURN(ready_, batch_of(step_));
  }
  step_facts_.Queue(step_ + 1);
  CONVENE_RETURN_IF_ERROR(engine_->QueueStep(*ready_, update, spike_guard_.Limits()));
  ready_.reset();
  if (step_ + 1 == options_.steps) return absl::OkStatus();
  CONVENE_ASSIGN_OR_RETURN(ready_, batch_of(step_ + 1));
  return absl::OkStatus();
}

bool Training::PausesAfter(int64_t step) const {
  return step == options_.steps || op_reports_->PausesAfter(step) ||
         IsDue(options_.checkpoint_every, step) || IsDue(options_.replicate_every, step) ||
         IsDue(options_.validation_every, step) || IsDue(options_.samples.every, step);
}

absl::Status Training::Report(const StepResult& result, absl::Duration step_time,
                              absl::Duration data_time) {
  if (reporter_ == nullptr) return absl::OkStatus();
  if (result.skipped) {
    reporter_->Say(
        result.counted_targets == 0
            ? WhyEmpty(step_)
            : WhySkipped(result.why, result.loss, result.grad_norm, result.limits, step_));
  }
  const absl::Status told =
      reporter_->Step(step_, result, LearningRate(step_), step_time, data_time);
  progress_.facts().mfu = reporter_->mfu();
  return told;
}

absl::Status Training::Record(const StepResult& result) {
  goes_back_ = spike_guard_.GoesBack(result.why);
  if (result.counted_targets > 0) {
    if (!result.skipped) spike_guard_.Record(result.loss, result.grad_norm);
    return skipped_steps_.Record(step_, result.why, result.loss);
  }
  skipped_steps_.RecordEmpty();
  return absl::OkStatus();
}

// Finishes one step. On a GPU the next step is then queued at once, before this one is reported, so
// that the GPU does not wait for a disk or a terminal. But no step is in flight when other work
// follows this step, or when the run has to stop. Returns whether to stop: a stop that is asked for
// during a step costs only the rest of that step.
absl::StatusOr<bool> Training::Advance() {
  if (!engine_->is_in_flight()) {
    last_time_ = clock_.Now();
    step_facts_.Begin();
    progress_.Tell(step_, contract::kStepPhase);
    CONVENE_RETURN_IF_ERROR(QueueStep());
  }
  CONVENE_ASSIGN_OR_RETURN(const StepResult result, engine_->AwaitStep());
  if (choices_ != nullptr) choices_->Keep();
  ++step_;
  const MonotonicTime now = clock_.Now();
  const absl::Duration step_time = now - last_time_;
  step_facts_.Done(result, step_time, SamplesAfter(ramp_, step_) * options_.sequence_length);
  progress_.Tell(step_, contract::kStepPhase);
  const absl::Duration data_time = step_facts_.TakeDataTime();
  last_time_ = now;
  const absl::Status allowed = Record(result);
  if (allowed.ok() && device_.kind() != DeviceKind::kCpu && !result.stop_requested && !goes_back_ &&
      !PausesAfter(step_)) {
    CONVENE_RETURN_IF_ERROR(QueueStep());
  }
  CONVENE_RETURN_IF_ERROR(Report(result, step_time, data_time));
  if (!allowed.ok()) {
    // All ranks see the same norms and end here, so the checkpoint in flight can still be kept.
    CONVENE_RETURN_IF_ERROR(saver_->Finish(step_));
    return allowed;
  }
  // On a GPU, and with an offloaded optimizer, a step's result is there before its update is done.
  // On a CPU a step follows at once where nothing else does, though it is not yet in flight.
  const bool is_update_late =
      !engine_->is_in_flight() &&
      (device_.kind() != DeviceKind::kCpu || (options_.offload_optimizer && PausesAfter(step_)));
  CONVENE_RETURN_IF_ERROR(op_reports_->StepDone(step_, now, step_time, is_update_late));
  return result.stop_requested;
}

// Returns whether to stop; then the validation may be incomplete.
absl::StatusOr<bool> Training::Validate() {
  if (validation_.is_empty()) return false;
  progress_.Tell(step_, "validation");
  op_reports_->Pause();
  return validation_.Run(step_, *engine_, reporter_.get());
}

// Returns whether to stop; then the texts are not whole, and nobody sees them.
absl::StatusOr<bool> Training::MakeSamples() {
  if (!IsDue(options_.samples.every, step_)) return false;
  progress_.Tell(step_, "samples");
  op_reports_->Pause();
  return samples_.Run(
      step_, *engine_, reporter_.get(), [this] { return WantsStop(); }, *communicators_.host,
      host_stream_);
}

// The samples and the validation that are due after the step from which the run goes on, where a
// stop or a death has cut them short: the metrics file, which rank 0 alone knows, has none. Returns
// whether to stop.
absl::StatusOr<bool> Training::MakeUp() {
  const bool has_samples = IsDue(options_.samples.every, step_);
  const bool has_validation = IsDue(options_.validation_every, step_) && !validation_.is_empty();
  if (step_ == 0 || (!has_samples && !has_validation)) return false;
  double missing[] = {0, 0};
  if (reporter_ != nullptr) {
    missing[0] = has_samples && !reporter_->HasSample(step_) ? 1 : 0;
    missing[1] = has_validation && !validation_.IsTold(step_, *reporter_) ? 1 : 0;
  }
  CONVENE_RETURN_IF_ERROR(
      communicators_.host->AllReduce(absl::MakeSpan(missing), ReduceOp::kMax, host_stream_));
  if (missing[0] > 0) {
    CONVENE_ASSIGN_OR_RETURN(const bool stops, MakeSamples());
    if (stops) return true;
  }
  return missing[1] > 0 ? Validate() : false;
}

CheckpointInfo Training::Info() const {
  return {.step = step_,
          .samples_consumed = FirstSample(step_),
          .updates = skipped_steps_.updates(),
          .seed = options_.seed,
          .model = ShapeText(options_.model),
          .data = DataIdentity(options_, data_.training),
          .samples = SamplesText(),
          .optimizer = options_.optimizer->name(),
          .spike_guard = spike_guard_.State(),
          .base = options_.model.adapter.is_on() || options_.preference_beta > 0
                      ? first_weights_.weights
                      : "",
          .tokenizer = data_.tokenizer,
          .longest_text = first_weights_.longest_text,
          .began_with = began_with_,
          .layout = layout_.ToString(),
          .world_size = contract_.world_size};
}

absl::StatusOr<TrainingEnd> Training::Stop() {
  if (replicas_ != nullptr) {  // Where the job is formed anew, it loses no step.
    progress_.Tell(step_, kCopiesPhase);
    CONVENE_RETURN_IF_ERROR(replicas_->Stage(Info(), engine_->optimizer()));
    CONVENE_RETURN_IF_ERROR(replicas_->Finish());
  }
  CONVENE_RETURN_IF_ERROR(saver_->SaveLast(Info(), engine_->optimizer()));
  if (reporter_ == nullptr) return TrainingEnd::kStopped;
  // A job that is formed anew goes on by itself. Where this node was told to end, a person may have
  // to start it again, and has to know how.
  if (stop_.reason() == StopReason::kTerminated) {
    reporter_->Summary(step_);
  } else {
    reporter_->Say(absl::StrCat("stopped after step ", step_));
  }
  return TrainingEnd::kStopped;
}

absl::StatusOr<TrainingEnd> Training::Run() {
  absl::StatusOr<TrainingEnd> end = TrainToEnd();
  // After an error a save may be in flight, and the caller is about to close its connections.
  if (saver_ != nullptr && saver_->is_in_flight()) {
    spdlog::error("the training ends, and gives up the checkpoint that is being written: {}",
                  std::string(end.status().message()));
    progress_.Tell(step_, contract::kCheckpointPhase);  // The disk may take its time.
  }
  saver_.reset();
  replicas_.reset();
  return end;
}

absl::StatusOr<TrainingEnd> Training::TrainToEnd() {
  CONVENE_RETURN_IF_ERROR(Prepare(/*goes_back=*/false));
  stop_.Watch();
  if (step_ < options_.steps) {
    CONVENE_RETURN_IF_ERROR(Replicate());
    CONVENE_ASSIGN_OR_RETURN(const bool stops, MakeUp());
    if (stops) return Stop();
  }
  while (step_ < options_.steps) {
    CONVENE_RETURN_IF_ERROR(Replicate());
    CONVENE_ASSIGN_OR_RETURN(const bool stop_requested, Advance());
    CONVENE_RETURN_IF_ERROR(saver_->Poll());
    if (goes_back_) {
      CONVENE_RETURN_IF_ERROR(GoBack());
      continue;
    }
    if (step_ == options_.steps) break;
    if (stop_requested) return Stop();
    if (engine_->is_in_flight()) continue;
    if (IsDue(options_.checkpoint_every, step_)) {
      CONVENE_RETURN_IF_ERROR(saver_->Save(Info(), engine_->optimizer()));
    }
    CONVENE_ASSIGN_OR_RETURN(const bool stops_samples, MakeSamples());
    if (stops_samples) return Stop();
    if (!IsDue(options_.validation_every, step_)) continue;
    CONVENE_ASSIGN_OR_RETURN(const bool stops_validation, Validate());
    if (stops_validation) return Stop();
  }
  CONVENE_RETURN_IF_ERROR(saver_->Finish(step_));
  progress_.Tell(step_, "end");
  if (replicas_ != nullptr) CONVENE_RETURN_IF_ERROR(replicas_->Finish());
  CONVENE_RETURN_IF_ERROR(skipped_steps_.AtEnd());
  CONVENE_RETURN_IF_ERROR(saver_->SaveLast(Info(), engine_->optimizer()));
  CONVENE_RETURN_IF_ERROR(MakeSamples().status());
  CONVENE_RETURN_IF_ERROR(Validate().status());
  CONVENE_ASSIGN_OR_RETURN(const std::string tables, op_reports_->Text(step_));
  if (reporter_ != nullptr) {
    if (!tables.empty()) reporter_->Say(tables);
    reporter_->Summary(step_);
  }
  return TrainingEnd::kFinished;
}

}  // namespace convene::worker

// The loop over steps and what happens between them: checkpoints, copies in memory, validation,
// samples, and the way back after a spike.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "tools/base/clock.h"
#include "worker_runtime/checkpoint/directory_lock.h"
#include "worker_runtime/checkpointing/save_restore.h"
#include "worker_runtime/checkpointing/saver.h"
#include "worker_runtime/checkpointing/spares.h"
#include "worker_runtime/comm/bootstrap.h"
#include "worker_runtime/contract/contract.h"
#include "worker_runtime/device/device.h"
#include "worker_runtime/optimizer/skipped_steps.h"
#include "worker_runtime/optimizer/spike_guard.h"
#include "worker_runtime/options/options.h"
#include "worker_runtime/options/ramp_options.h"
#include "worker_runtime/replicas/peer_replicas.h"
#include "worker_runtime/session/progress_writer.h"
#include "worker_runtime/session/stop_token.h"
#include "worker_runtime/trainer/batches.h"
#include "worker_runtime/trainer/engine.h"
#include "worker_runtime/trainer/first_weights.h"
#include "worker_runtime/trainer/op_reports.h"
#include "worker_runtime/trainer/reporter.h"
#include "worker_runtime/trainer/run_data.h"
#include "worker_runtime/trainer/samples.h"
#include "worker_runtime/trainer/step_facts.h"
#include "worker_runtime/trainer/token_batch.h"
#include "worker_runtime/trainer/validation.h"
#include "worker_runtime/tuning/job_choices.h"

namespace convene::worker {

enum class TrainingEnd {
  kFinished,  // all steps are done
  kStopped,   // somebody's stop token asked; everything up to here is saved
};

// One rank's. Not thread-safe. It borrows all arguments of the constructor until Run has returned.
class Training {
 public:
  // `collective_memory`: CollectiveMemory's, or null. `choices`: StartChoices', or null.
  Training(const TrainOptions& options, const Contract& contract, const Layout& layout,
           const RunData& data, const Tokenizer& tokenizer, CommunicatorSet& communicators,
           Device& device, Memory* collective_memory, JobChoices* choices, StopToken& stop,
           const SpareWishes* spares, ProgressWriter& progress)
      : options_(options),
        contract_(contract),
        layout_(layout),
        ramp_(RampOf(options)),
        data_(data),
        communicators_(communicators),
        device_(device),
        collective_memory_(collective_memory),
        choices_(choices),
        stop_(stop),
        spares_(spares),
        progress_(progress),
        step_facts_(layout, contract.rank, device, progress),
        loader_(data.training, LoaderOptionsOf(options, layout, contract.rank)),
        validation_(options, layout, contract.rank, data),
        samples_(options, tokenizer),
        skipped_steps_(options.max_skipped_steps),
        spike_guard_(options.spikes) {}

  // All ranks call it, once. Errors: RunTraining's, from the first collective on.
  absl::StatusOr<TrainingEnd> Run();

 private:
  absl::StatusOr<TrainingEnd> TrainToEnd();
  // `goes_back`: after a spike, by all ranks; then only what follows the checkpoint is made anew.
  absl::Status Prepare(bool goes_back);
  absl::Status Resume(const std::optional<Restored>& resumed);
  absl::Status GoBack();
  absl::Status MakeWeights(bool resumed);
  void SayHowItBegins(const std::optional<Restored>& resumed, absl::Duration weights_time);
  absl::Status FindAllReferences();
  absl::Status CreateReplicas();
  absl::Status Replicate();
  absl::StatusOr<int64_t> LeastMemory();
  std::string SamplesText() const;
  absl::Status CreateReporter();
  double LearningRate(int64_t step) const;
  absl::Status QueueStep();
  absl::StatusOr<bool> Advance();
  absl::Status Record(const StepResult& result);
  absl::Status Report(const StepResult& result, absl::Duration step_time, absl::Duration data_time);
  absl::StatusOr<bool> Validate();
  absl::StatusOr<bool> MakeSamples();
  absl::StatusOr<bool> MakeUp();
  CheckpointInfo Info() const;
  absl::StatusOr<TrainingEnd> Stop();
  static bool IsDue(int64_t every, int64_t step) { return every > 0 && step % every == 0; }
  // Where a step begins in the order of samples.
  int64_t FirstSample(int64_t step) const {
    return SamplesAfter(ramp_, step) + spike_guard_.skipped_samples();
  }
  // Whether this rank is told to stop, or has to.
  bool WantsStop() const {
    return stop_.reason() != StopReason::kNone || (spares_ != nullptr && spares_->stop_wanted()) ||
           (saver_ != nullptr && saver_->wants_stop());
  }
  // Whether work follows this step that needs an idle device.
  bool PausesAfter(int64_t step) const;

  const TrainOptions& options_;
  const Contract& contract_;
  const Layout& layout_;
  const BatchRamp ramp_;
  const RunData& data_;
  CommunicatorSet& communicators_;
  Device& device_;
  Memory* const collective_memory_;
  JobChoices* const choices_;
  StopToken& stop_;
  const SpareWishes* const spares_;  // rank 0 of a job with spares only
  ProgressWriter& progress_;
  StepFacts step_facts_;
  Clock& clock_ = Clock::Real();
  Stream host_stream_ = Stream::Cpu();  // for what ranks tell each other
  BatchLoader loader_;
  Validation validation_;
  const Samples samples_;
  FirstWeights first_weights_;
  std::vector<double> references_;                // of pairs of answers, by their rows' numbers
  std::optional<DirectoryLock> checkpoint_lock_;  // rank 0 only
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Reporter> reporter_;  // rank 0 only
  SkippedSteps skipped_steps_;
  SpikeGuard spike_guard_;
  std::unique_ptr<CheckpointSaver> saver_;  // made by Prepare; gone when Run returns
  std::unique_ptr<PeerReplicas> replicas_;  // made by Prepare; null without --replicate-every
  std::optional<OpReports> op_reports_;     // made by Prepare
  int64_t step_ = 0;                        // finished
  std::string began_with_;                  // CheckpointInfo::began_with
  bool goes_back_ = false;                  // after the step that is finished
  std::optional<TokenBatch> ready_;         // of the step after the one that was queued last
  MonotonicTime last_time_;                 // when the last step ended, or the one under way began
};

}  // namespace convene::worker

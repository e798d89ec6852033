// One rank's trainer: parameters, gradients, optimizer shard and pipeline stage over one arena of
// the device's memory, and the optimizer step over them.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "tools/base/check.h"
#include "worker_runtime/checkpoint/state_source.h"
#include "worker_runtime/comm/bootstrap.h"
#include "worker_runtime/device/device.h"
#include "worker_runtime/device/elements.h"
#include "worker_runtime/pipeline/executor.h"
#include "worker_runtime/pipeline/graphed_stage.h"
#include "worker_runtime/schedule/plan.h"
#include "worker_runtime/shard/bucket_store.h"
#include "worker_runtime/trainer/engine_parts.h"
#include "worker_runtime/trainer/token_batch.h"

namespace convene::worker {

// Of pairs of answers, over those of the global batch that count: how many have the chosen answer's
// reward above the rejected one's, and the sum of the rewards' differences (PreferenceLoss).
struct RewardSums {
  double right = 0;
  double margins = 0;
};

// The same on every rank.
struct StepResult {
  // Nats a token, before the update: the mean over the targets of the global batch that count. 0
  // where none counts.
  double loss = 0;
  double grad_norm = 0;         // before clipping, over all parameters
  bool stop_requested = false;  // by any rank
  int64_t counted_targets = 0;  // of the global batch
  // Nothing was updated: for `why`, or because no target counts.
  bool skipped = false;
  SkipReason why = SkipReason::kNone;
  StepLimits limits;  // as they were given
  // Of models with experts: what their balance and their z-loss add to the loss (ops/router.h), in
  // all layers together; and sums over all routings.
  double router_losses[2] = {};
  ExpertTotals experts = {};
  RewardSums rewards;
};

// The same on every rank.
struct ForwardResult {
  double loss = 0;              // nats, sum over the batch's targets that count
  bool stop_requested = false;  // by any rank
  RewardSums rewards;
};

// Not thread-safe. Allocates in Create() alone; a step allocates nothing of its own.
//
// A step in compute(): the pipeline's run, sums, and on a CPU the update. Beside it, in
// communication(): reductions from the last microbatch's backward pass on; on a GPU the update; and
// gathers until the next run needs their parameters (BucketStore).
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

  // The weights that the seed gives, on every layout the same bits. A rank makes those of its shard
  // alone, on the threads of device.host(), and `tell` hears how far it is: of 1. All ranks call
  // it. Errors: as RankOptimizers::SetWeights. REQUIRES: no step is in flight.
  absl::Status InitializeWeights(
      WeightSet set = WeightSet::kAll, absl::FunctionRef<void(double done)> tell = [](double) {});
  // The same with the weights that `source` holds, under the model's names and of its shape, and as
  // a first step finds the moments. `agree` hears how reading them went on this rank, before any
  // rank waits for another one's weights: it waits for the slowest disk, and where it returns an
  // error, which is then this call's, the weights are garbage.
  absl::Status LoadWeights(WeightSet set, const StateSource& source,
                           absl::FunctionRef<void(double done)> tell,
                           absl::FunctionRef<absl::Status(const absl::Status& read)> agree);

  // Starts one optimizer step over this rank's part of the global batch: options.microbatches, or
  // as many as one of options.shorter_schedules has. The batch may be reused on return. A gradient
  // that is no number leaves weights and moments as they were, and so do a loss and a gradient norm
  // above `limits` (nats a token; before clipping), and a batch of which no target counts: its
  // gradient is 0, and AdamW would still move weights by their decay and by the moments. That step
  // runs no pass. Errors: the collective's, the device's. REQUIRES: no step is in flight.
  absl::Status QueueStep(const TokenBatch& batch, const UpdateParameters& update,
                         const StepLimits& limits = {});
  // Waits for the step's result. On a GPU, and with offload_optimizer, it is there before the
  // update is done, so a next step that is queued at once begins without a pause: with
  // offload_optimizer a unit's first pass waits until the host has updated that unit. The result
  // counts options.stop_wanted as of the moment when the ranks add up their results, after the last
  // backward pass. Errors: the collective's, the device's, DeadlineExceeded. REQUIRES: a step is in
  // flight.
  absl::StatusOr<StepResult> AwaitStep();
  bool is_in_flight() const { return is_in_flight_; }

  // The loss of `microbatches` forward passes, over all ranks. REQUIRES: no step is in flight;
  // microbatches <= options.microbatches.
  absl::StatusOr<ForwardResult> ForwardLoss(const TokenBatch& batch, int microbatches);

  // For each row of the batch, which is a pair of answers: what PreferenceLoss calls its reference,
  // under the weights as they stand. Of all ranks with the same rows one has them, and the others
  // have zeros. Errors and requirements as ForwardLoss.
  absl::StatusOr<std::vector<double>> References(const TokenBatch& batch, int microbatches);

  // Goes on with texts by the weights as they stand, on all ranks alike. Null without
  // options.samples. All ranks make the same calls. REQUIRES: no step is in flight.
  LanguageModel* generation() {
    CONVENE_CHECK(!is_in_flight_);
    return parts_.generation.get();
  }

  RankOptimizers& optimizer() { return parts_.optimizers; }
  // Of the store below.
  const Placement& placement() const { return parts_.store.placement(); }
  // Of all tensors but those of experts that other ranks have not.
  BucketStore& store() { return parts_.store; }
  // That one, and behind it the experts'.
  const std::vector<BucketStore*>& stores() const { return parts_.stores.all(); }
  // The parameters of whole buckets (BucketStore), in the device's memory; the host may read them
  // once Device::Synchronize has returned. With offload_optimizer they may still be the parameters
  // of the step before: a bucket changes when a later call needs it.
  ConstElements parameters() const { return parts_.store.parameters(); }
  // With one microbatch a step, these are the step's gradients only until the next pass, also a
  // forward one: activations may lie in this memory then.
  absl::Span<const float> gradients() const { return parts_.store.gradients(); }

 private:
  Engine(const EngineOptions& options, const StepPlans& plans, CommunicatorSet& communicators,
         Device& device);
  absl::Status Allocate();
  absl::Status SetWeights(WeightSet set, MakeWeights make,
                          absl::FunctionRef<void(double done)> tell,
                          absl::FunctionRef<absl::Status()> filled);

  // Copies the batch, zeroes the totals and hands the stage its tokens.
  void Feed(const TokenBatch& batch, int microbatches, bool is_training);
  // Of pairs of answers, on the device; null where they are not known, or there are no pairs.
  const double* FeedReferences(const TokenBatch& batch, int64_t rows);
  // Numbers the tokens of the batch on the device; null where nothing is dropped.
  const int64_t* FeedTokenNumbers(const TokenBatch& batch, int64_t rows);
  absl::Status QueueEmptyStep();
  // Of the step that was queued last, in the unit of StepTotals.
  StepLimits SummedLimits() const;
  void PassOnStop();
  // Adds the totals up over all ranks and starts their way to the host.
  absl::Status AddUp();
  absl::Status Await();

  const EngineOptions options_;
  const ChunkPlacement placement_;
  CommunicatorSet& communicators_;
  const std::vector<Collective*> collectives_;  // those of the device's memory
  Device& device_;
  EngineParts parts_;
  const std::vector<int32_t> positions_;                // of this rank's tokens
  std::unique_ptr<GraphedStage> graphed_stage_;         // null without cuda_graphs
  std::map<int, PipelineExecutor> training_executors_;  // by the number of micro batches

  const std::unique_ptr<Event> done_;  // parts_.on_host.totals are there
  int64_t counted_targets_ = 0;        // of the step that was queued last
  StepLimits limits_;                  // the same
  bool is_in_flight_ = false;
};

}  // namespace convene::worker

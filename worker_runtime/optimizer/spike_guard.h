// PURE. The guard says above which loss and which gradient norm a step is better left out, because
// the steps before it had so much less: a batch of broken data then changes no weight. OLMo-core's
// SkipStepOptimizer does likewise, by standard deviations.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "worker_runtime/ops/update.h"

namespace convene::worker {

struct SpikeOptions {
  // Times the mean of the steps before; 0: no loss is a spike.
  double max_loss = 0;
  double max_gradient = 0;  // the same, for the global gradient norm before clipping
  int64_t window = 1;       // steps
  // So many spikes take the training back to its newest checkpoint, and it goes on behind the
  // samples that led to the spike (Chowdhery et al. 2022, PaLM, section 5.1). Later ones are left
  // out alone.
  int64_t max_rollbacks = 0;
};

// The mean m of n values that were recorded is the plain one while n <= window; each later value x
// then moves it by (x - m) / window. Before `window` values nothing is a spike. Steps that were
// left out are not recorded. Every rank sees the same values, so all ranks come to the same limits.
class SpikeGuard {
 public:
  explicit SpikeGuard(const SpikeOptions& options) : options_(options) {}

  // Of the next step.
  StepLimits Limits() const;
  // Of a step that changed the weights.
  void Record(double loss, double gradient_norm);

  // Whether the training goes back after a step that was left out for this reason.
  bool GoesBack(SkipReason why) const;
  // It went back, and `samples` that it had gone through will not come again.
  void WentBack(int64_t samples);
  int64_t rollbacks() const { return rollbacks_; }
  // By so many the training is further in the order of samples than its steps say.
  int64_t skipped_samples() const { return skipped_samples_; }
  // Of a guard from an older checkpoint: what has been skipped since stays skipped.
  void KeepRollbacks(const SpikeGuard& later);

  // A checkpoint keeps this text, from which Restore makes the same guard; "" where nothing can be
  // a spike, and nothing was.
  std::string State() const;
  // DataLoss when `state` is none of State(). With "" the guard begins anew.
  absl::Status Restore(const std::string& state);

 private:
  bool is_on() const { return options_.max_loss > 0 || options_.max_gradient > 0; }

  SpikeOptions options_;
  int64_t count_ = 0;
  double loss_ = 0;  // means
  double gradient_norm_ = 0;
  int64_t rollbacks_ = 0;
  int64_t skipped_samples_ = 0;
};

}  // namespace convene::worker

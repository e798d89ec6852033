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

  // A checkpoint keeps this text, from which Restore makes the same guard; "" where nothing can be
  // a spike.
  std::string State() const;
  // DataLoss when `state` is none of State(). With "" the guard begins anew.
  absl::Status Restore(const std::string& state);

 private:
  bool is_on() const { return options_.max_loss > 0 || options_.max_gradient > 0; }

  const SpikeOptions options_;
  int64_t count_ = 0;
  double loss_ = 0;  // means
  double gradient_norm_ = 0;
};

}  // namespace convene::worker

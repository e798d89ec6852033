// How likely a model finds texts: the stage of training over windows, without gradients and without
// a cache. A window that is not full takes the stage of a shorter pass, where there is one that
// holds its tokens.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "worker_runtime/checkpoint/state_source.h"
#include "worker_runtime/comm/bootstrap.h"
#include "worker_runtime/device/arena.h"
#include "worker_runtime/device/device.h"
#include "worker_runtime/device/dtype.h"
#include "worker_runtime/inference/weight_store.h"
#include "worker_runtime/model/config.h"
#include "worker_runtime/model/stage.h"

namespace convene::worker {

// Not thread-safe.
class Scorer {
 public:
  struct Options {
    ModelConfig config;
    DType dtype = DType::kFloat32;               // kFloat32 or kBFloat16
    int window = 0;                              // the most tokens of a pass; at least 1
    absl::Duration timeout = absl::Minutes(10);  // of each wait for the device
  };

  // Reads the weights. Borrows communicators and device. InvalidArgument: ValidateModel's, or a
  // window that is longer than a table of learned positions. Errors else: the source's, and
  // ResourceExhausted with the plan of memory.
  static absl::StatusOr<std::unique_ptr<Scorer>> Make(const Options& options,
                                                      const StateSource& weights,
                                                      const CommunicatorSet& communicators,
                                                      Device& device);

  int window() const { return options_.window; }
  // The tokens of the pass that computes so many. REQUIRES: 1 to window().
  int PassFor(size_t tokens) const { return StageFor(tokens).tokens; }

  // The sum over the targets that are not negative of -log p(target | its token and those before
  // it), in nats. Errors: the device's. REQUIRES: as many targets as tokens, 1 to window().
  absl::StatusOr<double> Loss(absl::Span<const int32_t> tokens, absl::Span<const int32_t> targets);

 private:
  struct SizedStage {
    int tokens = 0;
    std::unique_ptr<Stage> stage;
  };

  Scorer(const Options& options, const CommunicatorSet& communicators, Device& device);

  const SizedStage& StageFor(size_t tokens) const;

  const Options options_;
  Device& device_;
  Arena arena_, staging_;
  const std::vector<UnitSpec> units_;
  WeightStore store_;
  ArenaBlock<char> workspace_;      // of all stages
  std::vector<SizedStage> stages_;  // falling numbers of tokens
  ArenaBlock<int32_t> tokens_, targets_;
  ArenaBlock<double> losses_;
  std::vector<int32_t> host_tokens_, host_targets_;
};

}  // namespace convene::worker

// A training run on all ranks of a layout, in their places (testing/places.h), and the comparison
// of two runs: the parts that the tests of layouts share.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker_runtime/comm/testing/test_worlds.h"
#include "worker_runtime/data/batch_ramp.h"
#include "worker_runtime/data/sample_order.h"
#include "worker_runtime/testing/places.h"
#include "worker_runtime/trainer/engine.h"

namespace convene::worker::testing {

// Both have sequence_length elements. A negative target does not count.
struct Sample {
  std::vector<int32_t> inputs;
  std::vector<int32_t> targets;
};

struct TrainingRun {
  EngineOptions engine;  // of every rank; Train sets `rank`
  BatchCut cut;
  BatchRamp ramp;  // BatchLoader::Options'
  int steps = 0;
  // The sample at a position of the data's order. All ranks call it at the same time.
  std::function<Sample(int64_t position)> sample;
  int32_t end_of_document = 0;  // where the engine's rows are packed
  // Before the first step, on every rank; null: the engine's own start.
  std::function<absl::Status(Engine& engine)> prepare;
  // Of a step, which counts from 1; Train sets `step`, which counts those that changed the weights.
  std::function<UpdateParameters(int step)> adam;
  // Of a step, which counts from 1; null: none.
  std::function<StepLimits(int step)> limits;
  // After a step, which counts from 1, on every rank; null: nothing happens there.
  std::function<absl::Status(int rank, int step, Engine& engine)> between;
  Transport transport = TestedTransports().front();
  absl::Duration timeout;  // PlaceOptions::timeout
};

struct Curve {
  std::vector<double> losses;  // by step
  std::vector<double> grad_norms;
  std::vector<double> router_losses;  // both together
  double validation_loss = 0;  // after the last step, nats a token of the samples that follow it
  // After the last step.
  std::vector<std::string> parameters;                // bytes, by rank
  std::map<std::string, std::vector<float>> tensors;  // whole ones, by name; of fp32 alone
  // Tensors whose copies on several ranks are not the same bits, of fp32 alone, and results that
  // are not the same on all ranks.
  std::vector<std::string> unequal;
};

// Errors: the engine's, of the rank that failed first.
absl::StatusOr<Curve> Train(const TrainingRun& run);

// The first loss or gradient norm that is further from the expected one than 1e-5 of it, in words;
// "" where there is none.
std::string CurveDifference(const Curve& curve, const Curve& expected);
// Likewise the first tensor, by its length; or a tensor that only one of the runs has.
std::string TensorDifference(const Curve& curve, const Curve& expected);

}  // namespace convene::worker::testing

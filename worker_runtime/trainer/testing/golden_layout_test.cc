// The same numbers as PyTorch on every kind of layout, from the same weights: what golden_test says
// of one process. golden/make_golden.py wrote the numbers.
#include <catch2/catch.hpp>
#include <cmath>
#include <string>
#include <vector>

#include "tools/base/testing/status_testing.h"
#include "worker_runtime/trainer/testing/golden.h"
#include "worker_runtime/trainer/testing/layout_run.h"

namespace convene::worker {
namespace {

using testing::Curve;
using testing::Golden;
using testing::TrainingRun;

constexpr int kBatch = 4;
constexpr int kLength = 24;
constexpr int kSteps = 50;

// tp 4 has more ranks than the model has heads of keys.
constexpr const char* kLayouts[] = {
    "cp=2 cp_method=ring",
    "cp=2 cp_method=allgather recompute=attention",
    "cp=2 cp_method=ulysses bucket=1",
    "tp=4 sequence_parallel=on",
    "dp_shard=2 zero_stage=3 bucket=1",
    "pp=2 schedule=zb-v uneven_cut=1",
    "dp_shard=2 tp=2 zero_stage=2 sequence_parallel=on recompute=swiglu,mlp",
    "dp_shard=2 ep=2 tp=2",
};

std::string TextOf(const Golden& golden, const std::string& layout) {
  const bool shares_keys = golden.Metadata("kv_heads") == 2;
  const ModelConfig model = golden.Model();
  return absl::StrCat(layout, " layers=", model.layers, " hidden=", model.hidden_size,
                      " ffn=", model.ffn_size) +
         " head_size=8 vocabulary=64 sequence_length=24 global_batch=4 clip=1 family=" +
         golden.TinyOfFamily() + (shares_keys ? " kv_heads=2 queries_a_key=2" : " kv_heads=4") +
         (golden.HasMetadata("eod_token") ? " packed=1" : "") +
         (golden.Metadata("tied_embeddings") != 0 ? " tied=1" : "");
}

// All but one where heads of keys have biases: their ranks' copies want longer ones of queries; but
// the last where there are no experts; and but those with tp where norms are over all heads.
std::vector<std::string> LayoutsOf(const Golden& golden) {
  std::vector<std::string> layouts;
  for (const char* const layout : kLayouts) {
    const auto the_case = testing::CaseOfText(TextOf(golden, layout));
    REQUIRE_OK(the_case);
    if (testing::LegalLayout(*the_case).ok()) layouts.emplace_back(layout);
  }
  const ModelConfig model = golden.Model();
  REQUIRE(layouts.size() >= std::size(kLayouts) - (model.family->qkv_biases ? 1 : 0) -
                                (model.experts.count == 0 ? 1 : 0) -
                                (model.family->whole_norms ? 2 : 0));
  return layouts;
}

// Trains a layout from the golden weights on the golden batches, one after the other.
TrainingRun RunOf(const Golden& golden, const std::string& layout) {
  const auto the_case = testing::CaseOfText(TextOf(golden, layout));
  REQUIRE_OK(the_case);
  REQUIRE_OK(testing::LegalLayout(*the_case));
  TrainingRun run = testing::RunOf(*the_case);
  run.engine.model = golden.Model();
  if (golden.HasMetadata("eod_token")) {
    run.end_of_document = static_cast<int32_t>(golden.Metadata("eod_token"));
  }
  run.steps = kSteps;
  run.sample = [tokens = golden.Values<int32_t>("tokens"),
                targets = golden.Values<int32_t>("targets")](int64_t position) {
    // The batch behind the last one is the first.
    const int64_t first = position % (kSteps * kBatch) * kLength;
    return testing::Sample{{tokens.begin() + first, tokens.begin() + first + kLength},
                           {targets.begin() + first, targets.begin() + first + kLength}};
  };
  run.prepare = [weights = golden.Weights()](Engine& engine) {
    return testing::SetWeights(weights, engine);
  };
  run.adam = [](int) { return UpdateParameters{.learning_rate = 2e-3, .weight_decay = 0.1}; };
  return run;
}

Curve CurveOf(const TrainingRun& run) {
  absl::StatusOr<Curve> curve = testing::Train(run);
  REQUIRE_OK(curve);
  CHECK(curve->unequal == std::vector<std::string>());
  return *std::move(curve);
}

TEST_CASE("on every layout logits are PyTorch's") {
  const Golden golden("packed");
  const std::vector<float> expected = golden.Values<float>("log_probabilities");
  const int64_t vocabulary = golden.Shape("log_probabilities")[2];
  // The loss of a batch in which one place counts is that place's log probability.
  constexpr int kProbes = 48;
  const auto place_of = [](int64_t probe) { return probe * 29 % (kBatch * kLength); };
  const auto token_of = [&](int64_t probe) { return probe * 23 % vocabulary; };
  for (const std::string& layout : LayoutsOf(golden)) {
    INFO(layout);
    TrainingRun run = RunOf(golden, layout);
    run.steps = kProbes;
    run.adam = [](int) { return UpdateParameters{.learning_rate = 0}; };
    run.sample = [&, batches = run.sample](int64_t position) {
      testing::Sample sample = batches(position % kBatch);
      const int64_t probe = position / kBatch;
      for (int64_t t = 0; t < kLength; ++t) {
        const bool counts = position % kBatch * kLength + t == place_of(probe);
        sample.targets[t] = counts ? static_cast<int32_t>(token_of(probe)) : -1;
      }
      return sample;
    };
    const Curve curve = CurveOf(run);
    for (int probe = 0; probe < kProbes; ++probe) {
      INFO("place " << place_of(probe) << ", token " << token_of(probe));
      CHECK(std::abs(-curve.losses[probe] -
                     expected[place_of(probe) * vocabulary + token_of(probe)]) < 5e-6);
    }
  }
}

// An update whose epsilon is far above every gradient is the gradient, many times over.
TEST_CASE("on every layout gradients are PyTorch's") {
  constexpr double kEpsilon = 1e5;
  constexpr double kTimes = 100;
  for (const char* const name : testing::kGoldenModels) {
    const Golden golden(name);
    const auto start = golden.Weights();
    for (const std::string& layout : LayoutsOf(golden)) {
      TrainingRun run = RunOf(golden, layout);
      run.steps = 1;
      run.engine.clip_grad_norm = 0;
      run.adam = [](int) {
        return UpdateParameters{.learning_rate = kTimes * kEpsilon, .epsilon = kEpsilon};
      };
      const Curve curve = CurveOf(run);
      REQUIRE(curve.tensors.size() == start.size());
      for (const auto& [tensor, values] : curve.tensors) {
        if (absl::EndsWith(tensor, "e_score_correction_bias")) continue;  // no gradient
        INFO(name << ", " << layout << ": " << tensor);
        const std::vector<float> expected = golden.Values<float>("gradient/" + tensor);
        const std::vector<float>& before = start.at(tensor);
        REQUIRE(values.size() == expected.size());
        double worst = 0;
        for (size_t i = 0; i < values.size(); ++i) {
          const double gradient = (double{before[i]} - values[i]) / kTimes;
          worst = std::max(worst, std::abs(gradient - expected[i]));
        }
        CHECK(worst < 1e-5 * testing::Largest(expected));
      }
    }
  }
}

TEST_CASE("on every layout fifty steps follow PyTorch's losses and norms") {
  for (const char* const name : testing::kGoldenModels) {
    const Golden golden(name);
    const std::vector<double> losses = golden.Values<double>("loss");
    const std::vector<double> norms = golden.Values<double>("grad_norm");
    REQUIRE(losses.size() == kSteps);
    for (const std::string& layout : LayoutsOf(golden)) {
      const Curve curve = CurveOf(RunOf(golden, layout));
      for (int step = 0; step < kSteps; ++step) {
        INFO(name << ", " << layout << ", step " << step << ": loss " << curve.losses[step]
                  << ", PyTorch " << losses[step] << "; norm " << curve.grad_norms[step]
                  << ", PyTorch " << norms[step]);
        CHECK(std::abs(curve.losses[step] - losses[step]) < 1e-5 * losses[step]);
        CHECK(std::abs(curve.grad_norms[step] - norms[step]) < 1e-5 * norms[step]);
      }
    }
  }
}

TEST_CASE("on every layout fifty steps of each optimizer follow PyTorch's losses and norms") {
  const struct {
    const char* name;
    const UpdateRule& rule;
    UpdateParameters update;
  } optimizers[] = {
      {"plain", PlainSgdRule(), {.learning_rate = 0.1, .weight_decay = 0.01, .momentum = 0}},
      {"sgd", SgdRule(), {.learning_rate = 0.1, .weight_decay = 0.01}},
      {"nesterov", SgdRule(), {.learning_rate = 0.1, .weight_decay = 0.01, .nesterov = true}},
      {"muon",
       MuonRule(),
       {.learning_rate = 2e-3, .weight_decay = 0.1, .momentum = 0.95, .nesterov = true}},
  };
  const Golden start("untied");
  const Golden golden("optimizers");
  for (const auto& optimizer : optimizers) {
    const auto losses = golden.Values<double>(std::string("loss/") + optimizer.name);
    const auto norms = golden.Values<double>(std::string("grad_norm/") + optimizer.name);
    REQUIRE(losses.size() == kSteps);
    for (const std::string& layout : LayoutsOf(start)) {
      TrainingRun run = RunOf(start, layout);
      run.engine.update_rule = &optimizer.rule;
      run.adam = [&](int) { return optimizer.update; };
      const Curve curve = CurveOf(run);
      for (int step = 0; step < kSteps; ++step) {
        INFO(optimizer.name << ", " << layout << ", step " << step << ": loss "
                            << curve.losses[step] << ", PyTorch " << losses[step] << "; norm "
                            << curve.grad_norms[step] << ", PyTorch " << norms[step]);
        CHECK(std::abs(curve.losses[step] - losses[step]) < 1e-5 * losses[step]);
        CHECK(std::abs(curve.grad_norms[step] - norms[step]) < 1e-5 * norms[step]);
      }
    }
  }
}

}  // namespace
}  // namespace convene::worker

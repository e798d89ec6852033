// Texts that are made between steps: the same on every layout, and without a trace in the training.
#include <catch2/catch.hpp>
#include <cstdint>
#include <vector>

#include "tools/base/status_macros.h"
#include "worker_runtime/inference/generator.h"
#include "worker_runtime/trainer/testing/tiny_run.h"

namespace convene::worker {
namespace {

using testing::CheckSameBits;
using testing::Curve;
using testing::CurveOf;
using testing::Tiny;
using Run = testing::TinyRun;
using Texts = std::vector<std::vector<int32_t>>;

constexpr int kNewTokens = 8;

// Of unlike lengths, the longer one in two passes.
const Texts& Prompts() {
  static const Texts prompts = {{40, 41, 43}, {50, 52, 54, 56, 58, 60, 62, 64, 66}};
  return prompts;
}

struct Made {
  Curve curve;
  std::vector<std::vector<Texts>> texts;  // by rank and step
};

// After each step.
Made MadeBy(Run run) {
  const int ranks = run.layout.world_size();
  Made made = {.texts = std::vector(ranks, std::vector(run.steps, Texts(Prompts().size())))};
  run.samples = {.sequences = 2, .context = 9 + kNewTokens, .pass_tokens = 4};
  run.between = [&](int rank, int step, Engine& engine) {
    Texts& texts = made.texts[rank][step - 1];
    return Generate(*engine.generation(), Prompts(),
                    {.sampling = {.temperature = 1, .seed = 3}, .max_new_tokens = kNewTokens},
                    [&](int prompt, int32_t token, SequenceEnd) -> absl::StatusOr<bool> {
                      texts[prompt].push_back(token);
                      return true;
                    });
  };
  made.curve = CurveOf(run);
  return made;
}

// Returns the texts, by step.
std::vector<Texts> CheckLeavesNoTrace(Run run) {
  INFO(run.layout.ToString() << ", ZeRO-" << run.zero_stage << ", " << run.schedule << " in "
                             << DTypeName(run.dtype));
  run.steps = testing::StepsOfBits();
  const Made made = MadeBy(run);
  CheckSameBits(made.curve, CurveOf(run));
  for (const auto& of_rank : made.texts) CHECK(of_rank == made.texts[0]);
  for (const Texts& of_step : made.texts[0]) {
    for (const auto& text : of_step) CHECK(text.size() == kNewTokens);
  }
  return made.texts[0];
}

TEST_CASE("texts between steps change no bit, and are those of one process", "[once]") {
  if (!testing::HasPlacesOrSkips(8)) return;
  Run alone{Tiny(true), {}, 8, 8};  // one micro batch: gradients lie idle between steps
  const std::vector<Texts> expected = CheckLeavesNoTrace(alone);
  // On GPUs there are too few steps to see it learn.
  if (!testing::OnGpus()) CHECK(expected.front() != expected.back());
  for (const Layout& layout :
       {Layout{.tp = 2}, Layout{.dp = 2, .cp = 2}, Layout{.pp = 2, .dp = 2, .tp = 2}}) {
    // An emulated GPU takes seconds for a run: there the stage that shares out the most.
    for (const int zero_stage : testing::OnGpus() ? std::vector{3} : std::vector{1, 3}) {
      Run run{Tiny(true), layout, 8, 2};
      run.zero_stage = zero_stage;
      const std::vector<Texts> texts = CheckLeavesNoTrace(run);
      // A GPU's products round otherwise in other shapes.
      if (!testing::OnGpus()) CHECK(texts == expected);
    }
  }
}

TEST_CASE("texts between steps change no bit of other ways to train", "[once]") {
  if (!testing::HasPlacesOrSkips(4)) return;
  for (const char* schedule : {"interleaved", "zb-v"}) {
    Run run{Tiny(), {.pp = 2}, 8, 2};
    run.schedule = schedule;
    CheckLeavesNoTrace(run);
  }
  Run offloads{Tiny(), {.dp = 2}, 8, 2, DType::kBFloat16};
  offloads.zero_stage = 3;
  offloads.offload_optimizer = offloads.offload_parameters = true;
  CheckLeavesNoTrace(offloads);
  Run experts{Tiny(), {.dp = 4, .ep = 2}, 8, 2};
  experts.model.family = FamilyNamed("mixtral");
  experts.model.experts = {.count = 4, .chosen = 2, .ffn_size = 32};
  CheckLeavesNoTrace(experts);
}

}  // namespace
}  // namespace convene::worker

// Products of 8-bit floats over every kind of layout: whatever the grid, tensors are rounded by the
// same scales, so that runs differ by the last bits of sums alone, and by the few numbers that
// these bring over a tie. Ranks are threads, as in layout_test.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <vector>

#include "worker_runtime/trainer/testing/tiny_run.h"

namespace convene::worker {
namespace {

using testing::CheckSameBits;
using testing::Curve;
using testing::CurveOf;
using testing::Tiny;
using Run = testing::TinyRun;

constexpr int kRanksMax = 8;

// All widths of two tensor-parallel ranks are multiples of 16. The weights of the small model are
// large enough for its blocks to matter in the first step.
ModelConfig Model() {
  ModelConfig config = Tiny(/*tied=*/true);
  if (testing::OnGpus()) {
    config = {.layers = 2,
              .hidden_size = 32,
              .ffn_size = 32,
              .heads = 4,
              .kv_heads = 4,
              .head_size = 8,
              .vocabulary_size = 122,
              .tied_embeddings = true};
    config.initializer_range = 0.1;
  }
  return config;
}

Run Float8Run(const Layout& layout) {
  Run run{Model(), layout, 8, /*micro_batch_size=*/2};
  run.float8 = true;
  run.steps = testing::StepsOfBits();
  return run;
}

// The larger difference of the first loss and the first norm, as a part of what is expected.
double FirstDistance(const Curve& curve, const Curve& expected) {
  const auto part = [](double value, double of) { return std::abs(value - of) / of; };
  return std::max(part(curve.losses.front(), expected.losses.front()),
                  part(curve.grad_norms.front(), expected.grad_norms.front()));
}

// One step: the next one begins with weights that differ in their last bits, of which some are
// rounded to other codes. The measure is what rounding to 8 bits itself does to the step.
TEST_CASE("in 8-bit floats every layout takes the step of one process", "[once]") {
  if (!testing::HasPlacesOrSkips(kRanksMax)) return;
  struct Case {
    Layout layout;
    int zero_stage = 1;
    const char* schedule = "1f1b";
    Recompute recompute = Recompute::kNone;
    ContextMethod context_method = ContextMethod::kRing;
  };
  const std::vector<Case> cases = {
      {{.dp = 2}},
      {{.tp = 2}},
      {{.cp = 2}},
      {{.pp = 2}, 1, "zb-h1"},
      {{.pp = 2}, 1, "interleaved"},
      {{.dp = 2, .tp = 2}, 3},
      {{.tp = 2, .cp = 2}, 1, "1f1b", Recompute::kSelective, ContextMethod::kUlysses},
      {{.pp = 2, .dp = 2, .tp = 2}, 1, "zb-h1", Recompute::kFull}};
  const auto first_step = [](Run run) {
    run.steps = 1;
    return CurveOf(run);
  };
  const Curve expected = first_step(Float8Run({}));
  Run without = Float8Run({});
  without.float8 = false;
  const double of_rounding = FirstDistance(first_step(without), expected);
  CHECK(of_rounding > 1e-3);
  for (const Case& c : cases) {
    INFO(c.layout.ToString() << ", ZeRO-" << c.zero_stage << ", " << c.schedule);
    Run run = Float8Run(c.layout);
    run.zero_stage = c.zero_stage;
    run.schedule = c.schedule;
    run.recompute = c.recompute;
    run.context_method = c.context_method;
    // Sums over tp ranks are rounded otherwise, and bring some numbers over a tie.
    CHECK(FirstDistance(first_step(run), expected) < (c.layout.tp > 1 ? of_rounding / 20 : 1e-7));
  }
}

TEST_CASE("in 8-bit floats what changes no bit elsewhere changes none", "[once]") {
  if (!testing::HasPlacesOrSkips(kRanksMax)) return;
  Run plain = Float8Run({.pp = 2, .tp = 2});
  // Where a step has one micro batch, the weights' codes lie in gradients that are yet to be made,
  // unless backward passes go in halves.
  const int microbatches = GENERATE(4, 1);
  CAPTURE(microbatches);
  plain.global_batch_size = microbatches * plain.micro_batch_size;
  const Curve expected = CurveOf(plain);
  CheckSameBits(CurveOf(plain), expected);
  SECTION("backward passes in halves") {
    Run halves = plain;
    halves.schedule = "zb-h1";
    CheckSameBits(CurveOf(halves), expected);
  }
  SECTION("activations computed again") {
    for (const Recompute& recompute :
         {Recompute::kSelective, Recompute::kFull, Recompute{.swiglu = true, .mlp = true}}) {
      Run again = plain;
      again.recompute = recompute;
      CheckSameBits(CurveOf(again), expected);
      if (testing::OnGpus()) return;
    }
  }
  SECTION("collectives one after the other") {
    Run one_after_the_other = plain;
    one_after_the_other.overlap_communication = false;
    // On a GPU products beside a sum may be others (layout_bits_test).
    if (!testing::OnGpus()) CheckSameBits(CurveOf(one_after_the_other), expected);
  }
}

// Weights that ranks have whole are rounded once a step, gathered ones in each pass.
TEST_CASE("8-bit weights that are kept for a step are those that each pass would make", "[once]") {
  if (!testing::HasPlacesOrSkips(kRanksMax)) return;
  Run run = Float8Run({.dp = 2, .tp = 2});
  run.zero_stage = 2;
  const Curve kept = CurveOf(run);
  run.zero_stage = 3;
  const Curve made = CurveOf(run);
  CHECK(made.losses == kept.losses);
  CHECK(made.grad_norms == kept.grad_norms);
  CHECK(made.validation_loss == kept.validation_loss);
}

TEST_CASE("blocks at the model's ends keep their products of the dtype") {
  if (testing::OnGpus()) return;
  Run run = Float8Run({.pp = 2});
  std::vector<Curve> curves;
  for (const int blocks : {0, 1, run.model.layers / 2}) {
    run.bf16_end_blocks = blocks;
    curves.push_back(CurveOf(run));
  }
  run.float8 = false;
  CheckSameBits(curves[2], CurveOf(run));
  CHECK(curves[1].losses != curves[0].losses);
  CHECK(curves[1].losses != curves[2].losses);
}

TEST_CASE("a model learns in 8-bit floats and bf16") {
  if (testing::OnGpus()) return;
  Run run = Float8Run({});
  run.dtype = DType::kBFloat16;
  run.steps = testing::kSteps;
  const Curve curve = CurveOf(run);
  run.float8 = false;
  const Curve expected = CurveOf(run);
  CHECK(expected.losses.back() < 0.9 * expected.losses.front());
  CHECK(std::abs(curve.losses.back() / expected.losses.back() - 1) < 0.01);
}

}  // namespace
}  // namespace convene::worker

// Runs whose sums no layout changes (EngineOptions::reproducible): the bits of one rank on every
// layout over data-parallel and pipeline ranks.
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tools/base/testing/status_testing.h"
#include "worker_runtime/testing/places.h"
#include "worker_runtime/trainer/testing/layout_run.h"
#include "worker_runtime/trainer/testing/tiny_run.h"

namespace convene::worker {
namespace {

using testing::Curve;
using testing::CurveOf;
using testing::LayoutAxis;
using testing::LayoutCase;
using testing::OnGpus;
using testing::Tiny;
using Run = testing::TinyRun;

constexpr int kRanksMax = 8;

// In what two runs differ, in words; "" where they are the same bits.
std::string BitDifference(const Curve& curve, const Curve& expected) {
  if (curve.losses != expected.losses) return "losses";
  if (curve.grad_norms != expected.grad_norms) return "gradient norms";
  if (curve.router_losses != expected.router_losses) return "losses of routers";
  if (curve.validation_loss != expected.validation_loss) return "validation loss";
  if (!curve.unequal.empty()) return absl::StrCat("copies of ", curve.unequal.front());
  for (const auto& [name, tensor] : expected.tensors) {
    if (curve.tensors.at(name) != tensor) return name;
  }
  return "";
}

// The drawn case over the axes that change no bit.
LayoutCase OverFreeAxes(LayoutCase the_case) {
  the_case.tp = the_case.cp = the_case.ep = 1;
  the_case.sequence_parallel = 0;
  // A GPU's own update rounds otherwise than the host's.
  if (OnGpus()) the_case.offload = 0;
  return the_case;
}

// The same task on one rank, in the same micro batches, with as much memory for experts.
LayoutCase OnOneRank(const LayoutCase& the_case) {
  LayoutCase one = testing::OneProcess(the_case);
  one.micro_batch = the_case.micro_batch;
  one.expert_memory = the_case.expert_memory;
  return one;
}

TEST_CASE("reproducible sums: drawn layouts have the bits of one rank", "[once]") {
  if (!testing::HasPlacesOrSkips(kRanksMax)) return;
  const uint64_t seeds = OnGpus() ? 8 : 80;
  int compared = 0;
  for (uint64_t seed = 1; seed <= seeds; ++seed) {
    const LayoutCase the_case = OverFreeAxes(testing::CaseOfSeed(seed));
    if (!testing::LegalLayout(the_case).ok() || testing::RanksOf(the_case) == 1) continue;
    INFO("seed " << seed << ": " << testing::TextOf(the_case));
    const auto curve = testing::Train(testing::RunOf(the_case, OnGpus(), /*reproducible=*/true));
    const auto expected =
        testing::Train(testing::RunOf(OnOneRank(the_case), OnGpus(), /*reproducible=*/true));
    REQUIRE_OK(curve);
    REQUIRE_OK(expected);
    CHECK_THAT(BitDifference(*curve, *expected), Catch::Equals(""));
    ++compared;
  }
  CHECK(compared >= static_cast<int>(seeds) / 3);
}

Run RunOver(const Layout& layout, DType dtype, bool tied) {
  Run run{Tiny(tied), layout, /*global_batch_size=*/11, /*micro_batch_size=*/2, dtype};
  run.steps = testing::StepsOfBits();
  run.reproducible = true;
  return run;
}

TEST_CASE("reproducible sums: every ZeRO stage and schedule, on ranks that do not divide",
          "[once]") {
  if (!testing::HasPlacesOrSkips(kRanksMax)) return;
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const bool tied : {false, true}) {
      if (OnGpus() && tied != (dtype == DType::kBFloat16)) continue;
      const Curve one = CurveOf(RunOver({}, dtype, tied));
      for (const Layout& layout :
           {Layout{.dp = 2}, Layout{.dp = 3}, Layout{.dp = 7}, Layout{.pp = 2},
            Layout{.pp = 2, .dp = 3}, Layout{.dp = 4, .dp_replicate = 2},
            Layout{.dp = 6, .dp_replicate = 2}}) {
        for (const int zero_stage : {0, 1, 2, 3}) {
          if (OnGpus() && zero_stage % 2 == 0) continue;
          if (zero_stage == 0 && layout.dp_replicate != layout.dp) continue;
          Run run = RunOver(layout, dtype, tied);
          run.zero_stage = zero_stage;
          if (layout.pp > 1) run.schedule = zero_stage == 2 ? "zb-h1" : "1f1b";
          INFO(layout.ToString() << ", ZeRO-" << zero_stage << ", " << run.schedule << ", "
                                 << DTypeName(dtype) << (tied ? ", tied" : ""));
          CHECK_THAT(BitDifference(CurveOf(run), one), Catch::Equals(""));
        }
      }
    }
  }
}

// Then a table's summands are as many as the ranks: two on each rank with samples, none on the
// rest.
TEST_CASE("reproducible sums: a tied table on twice as many ranks as there are micro batches",
          "[once]") {
  if (!testing::HasPlacesOrSkips(kRanksMax)) return;
  Run run = RunOver({}, DType::kFloat32, /*tied=*/true);
  run.global_batch_size = 4;
  const Curve one = CurveOf(run);
  run.layout = {.dp = 4};
  for (const int zero_stage : {1, 2}) {
    run.zero_stage = zero_stage;
    INFO("ZeRO-" << zero_stage);
    CHECK_THAT(BitDifference(CurveOf(run), one), Catch::Equals(""));
  }
}

// Else the tests above would prove nothing.
TEST_CASE("plain sums depend on the layout", "[once]") {
  if (!testing::HasPlacesOrSkips(kRanksMax)) return;
  Run run = RunOver({}, DType::kFloat32, /*tied=*/false);
  run.global_batch_size = 12;
  run.reproducible = false;
  const Curve one = CurveOf(run);
  run.layout = {.dp = 3};
  CHECK_THAT(BitDifference(CurveOf(run), one), !Catch::Equals(""));
}

TEST_CASE("reproducible sums: over tp and cp the bits are those of their degrees", "[once]") {
  if (!testing::HasPlacesOrSkips(kRanksMax)) return;
  for (const Layout& degrees : {Layout{.tp = 2}, Layout{.cp = 2}}) {
    Run run = RunOver(degrees, DType::kFloat32, /*tied=*/true);
    const Curve narrow = CurveOf(run);
    run.layout.dp = 2;
    run.layout.pp = 2;
    run.zero_stage = 3;
    for (const char* schedule : {"1f1b", "zb-h1"}) {
      run.schedule = schedule;
      INFO(run.layout.ToString() << ", " << schedule);
      CHECK_THAT(BitDifference(CurveOf(run), narrow), Catch::Equals(""));
    }
  }
}

}  // namespace
}  // namespace convene::worker

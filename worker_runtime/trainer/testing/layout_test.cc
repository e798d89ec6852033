// The promise of 3D parallelism: whatever the grid, the same training run. Ranks are threads, over
// the loopback collectives unless a test says otherwise. Here are the layouts that people use;
// layout_property_test draws every other combination, and layout_bits_test has the pairs of runs
// that must agree to the bit.
#include <catch2/catch.hpp>
#include <cmath>
#include <utility>
#include <vector>

#include "worker_runtime/trainer/testing/tiny_run.h"

namespace convene::worker {
namespace {

using testing::CheckSameCurve;
using testing::CheckSameTensors;
using testing::Curve;
using testing::CurveOf;
using testing::kSteps;
using testing::Tiny;
using testing::Transport;
using Run = testing::TinyRun;

double RelativeError(double value, double expected) {
  return std::abs(value - expected) / std::abs(expected);
}

std::vector<Layout> LayoutsOf(int world_size) {
  std::vector<Layout> layouts;
  for (int pp = 1; pp <= world_size; pp *= 2) {
    for (int tp = 1; pp * tp <= world_size; tp *= 2) {
      layouts.push_back({pp, world_size / pp / tp, tp});
    }
  }
  return layouts;
}

void CheckEveryLayout(const ModelConfig& model, int global_batch_size, bool accumulate) {
  const Curve expected = CurveOf({model, {}, global_batch_size, global_batch_size});
  REQUIRE(expected.losses.back() < 0.9 * expected.losses.front());
  for (const Layout& layout : LayoutsOf(accumulate ? 4 : 8)) {
    INFO(layout.ToString() << (accumulate ? " with" : " without") << " accumulation");
    const int micro_batch_size = accumulate ? 1 : global_batch_size / layout.dp;
    CheckSameCurve(CurveOf({model, layout, global_batch_size, micro_batch_size}), expected);
  }
}

TEST_CASE("every layout without accumulation trains like one process") {
  CheckEveryLayout(Tiny(), 8, /*accumulate=*/false);
}

TEST_CASE("every layout with accumulation trains like one process") {
  CheckEveryLayout(Tiny(), 16, /*accumulate=*/true);
}

TEST_CASE("a batch that does not divide trains like one process, over every transport") {
  const int samples = 16;
  const Curve expected = CurveOf({Tiny(), {}, samples, samples});
  for (const Transport transport : testing::kTransports) {
    // Over dp 3 the ranks have 6, 5 and 5 samples; over dp 5 one has 4; 3 does not divide 16.
    for (const Layout layout : {Layout{2, 3, 1}, Layout{1, 3, 2}, Layout{1, 5, 1}}) {
      INFO(layout.ToString() << " over " << testing::ToString(transport));
      Run run{Tiny(), layout, samples, /*micro_batch_size=*/3};
      run.transport = transport;
      const Curve curve = CurveOf(run);
      CheckSameCurve(curve, expected);
      CheckSameTensors(curve, expected);
    }
  }
}

TEST_CASE("copies of shards train like one process, and hold the same bits") {
  const Curve expected = CurveOf({Tiny(true), {}, 8, 8});
  for (const Layout layout :
       {Layout{.dp = 4, .dp_replicate = 2}, Layout{.dp = 3, .dp_replicate = 3},
        Layout{.pp = 2, .dp = 4, .dp_replicate = 4}, Layout{.dp = 4, .tp = 2, .dp_replicate = 2}}) {
    INFO(layout.ToString());
    const Curve curve = CurveOf({Tiny(true), layout, 8, 2});
    CheckSameCurve(curve, expected);
    CheckSameTensors(curve, expected);
    for (int rank = 0; rank < layout.world_size(); ++rank) {
      Coordinate first = CoordinateOf(layout, rank);
      first.dp = 0;
      CHECK(curve.parameters[rank] == curve.parameters[RankOf(layout, first)]);
    }
  }
}

struct Sharded {
  const char* name;
  int zero_stage;
  bool reshard_after_forward;
};
const Sharded kSharded[] = {{"ZeRO-2", 2, true}, {"ZeRO-3", 3, true}, {"ZeRO-3, kept", 3, false}};

// Fails unless sharded gradients and parameters train like `expected`. In micro batches of one.
void CheckSharded(Run run, const Curve& expected) {
  for (const auto& [name, zero_stage, reshard_after_forward] : kSharded) {
    INFO(name << " over " << run.layout.ToString() << ", " << run.schedule);
    run.zero_stage = zero_stage;
    run.reshard_after_forward = reshard_after_forward;
    const Curve curve = CurveOf(run);
    CheckSameCurve(curve, expected);
    CheckSameTensors(curve, expected);
    for (int rank = 0; rank < run.layout.world_size(); ++rank) {
      Coordinate first = CoordinateOf(run.layout, rank);
      first.dp = 0;
      CHECK(curve.parameters[rank] == curve.parameters[RankOf(run.layout, first)]);
    }
  }
}

TEST_CASE("sharded gradients and parameters train like one process") {
  const Curve expected = CurveOf({Tiny(true), {}, 8, 8});
  for (const Layout layout :
       {Layout{.dp = 4}, Layout{.dp = 3, .tp = 2}, Layout{.pp = 2, .dp = 4, .dp_replicate = 2}}) {
    CheckSharded({Tiny(true), layout, 8, 1}, expected);
  }
}

TEST_CASE("packed documents train alike on every layout, and not like plain rows") {
  const auto packed = [](const Layout& layout, int micro_batch_size, Recompute recompute) {
    Run run{Tiny(), layout, 8, micro_batch_size};
    run.recompute = recompute;
    run.packed = true;
    return CurveOf(run);
  };
  const Curve expected = packed({}, 8, Recompute::kNone);
  CHECK(RelativeError(CurveOf({Tiny(), {}, 8, 8}).losses.back(), expected.losses.back()) > 1e-4);
  for (const Layout layout : {Layout{4, 2, 1}, Layout{2, 2, 2}}) {
    INFO(layout.ToString());
    CheckSameCurve(packed(layout, 2, Recompute::kNone), expected);
    CheckSameCurve(packed(layout, 1, Recompute::kFull), expected);
  }
}

// Of several documents a row, some of which begin on one rank and end on another.
TEST_CASE("every way of context parallelism trains like one process") {
  struct Case {
    Layout layout;
    Recompute recompute = Recompute::kNone;
    Transport transport = Transport::kLoopback;
  };
  const Case cases[] = {{{.cp = 4}, Recompute::kFull},
                        {{.dp = 3, .cp = 2}, Recompute::kNone, Transport::kGloo},
                        {{.pp = 2, .tp = 2, .cp = 2}, Recompute::kSelective}};
  Run one{Tiny(true), {}, 8, 8};
  one.packed = true;
  const Curve expected = CurveOf(one);
  for (const ContextMethod method :
       {ContextMethod::kRing, ContextMethod::kAllGather, ContextMethod::kUlysses}) {
    for (const Case& the_case : cases) {
      INFO(ContextMethodName(method) << " on " << the_case.layout.ToString());
      Run run{Tiny(true), the_case.layout, 8, 2};
      run.recompute = the_case.recompute;
      run.packed = true;
      run.context_method = method;
      run.transport = the_case.transport;
      const Curve curve = CurveOf(run);
      CheckSameCurve(curve, expected);
      CheckSameTensors(curve, expected);
    }
  }
}

double Distance(const Curve& curve, const Curve& expected) {
  double sum = 0;
  for (int step = 0; step < kSteps; ++step) {
    sum += std::pow(curve.losses[step] - expected.losses[step], 2);
  }
  return std::sqrt(sum);
}

// No constant is guessed: what one process loses by bf16 is the measure for every layout.
TEST_CASE("in bf16 no layout is further from fp32 than twice one process") {
  const Curve oracle = CurveOf({Tiny(), {}, 8, 8});
  const Curve single = CurveOf({Tiny(), {}, 8, 8, DType::kBFloat16});
  const double allowed = 2 * Distance(single, oracle);
  REQUIRE(allowed > 0);
  REQUIRE(single.losses.back() < 0.9 * single.losses.front());
  for (const Layout layout : {Layout{2, 1, 1}, Layout{1, 2, 1}, Layout{1, 1, 2}, Layout{2, 2, 2}}) {
    for (const DType reduce_dtype : {DType::kFloat32, DType::kBFloat16}) {
      INFO(layout.ToString() << ", sums over dp in " << DTypeName(reduce_dtype));
      CHECK(Distance(CurveOf({Tiny(), layout, 8, 2, DType::kBFloat16, reduce_dtype}), oracle) <=
            allowed);
    }
  }
  for (const ContextMethod method :
       {ContextMethod::kRing, ContextMethod::kAllGather, ContextMethod::kUlysses}) {
    Run run{Tiny(), {.cp = 4}, 8, 2, DType::kBFloat16};
    run.context_method = method;
    INFO(ContextMethodName(method));
    CHECK(Distance(CurveOf(run), oracle) <= allowed);
  }
}

}  // namespace
}  // namespace convene::worker

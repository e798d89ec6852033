// The promise of 3D parallelism: whatever the grid, the same training run. Ranks are threads, over
// the loopback collectives unless a test says otherwise. Here are the layouts that people use, and
// the pairs of runs that must agree to the bit; layout_property_test draws every other combination.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "tools/base/testing/status_testing.h"
#include "worker_runtime/schedule/generators.h"
#include "worker_runtime/trainer/testing/training_run.h"

namespace convene::worker {
namespace {

using testing::Curve;
using testing::Transport;

constexpr int kSteps = 12;
// Where two runs must agree to the bit: a bit that differs shows in the first steps.
constexpr int kStepsOfBits = 4;
constexpr int kSequenceLength = 16;
// The tiny model has eight blocks of 49 thousand elements: five buckets, none of them one group.
constexpr int64_t kSeveralBuckets = 60'000;

// Larger than the rounding of a gradient. With 1e-8 a weight whose gradient is 0 but for rounding
// moves as far as any other, and which way depends on the processor.
constexpr double kEpsilon = 1e-5;

struct Run {
  ModelConfig model;
  Layout layout;
  int global_batch_size = 8;
  int micro_batch_size = 1;
  DType dtype = DType::kFloat32;
  DType reduce_dtype = DType::kFloat32;
  Recompute recompute = Recompute::kNone;
  int zero_stage = 1;
  bool reshard_after_forward = true;
  bool offload_optimizer = false;
  bool offload_parameters = false;
  bool packed = false;
  bool overlap_communication = true;
  const char* schedule = "1f1b";
  ContextMethod context_method = ContextMethod::kRing;
  Transport transport = Transport::kLoopback;
  int steps = kSteps;

  BatchCut cut() const { return EvenCut(global_batch_size, micro_batch_size, layout.dp); }
};

ModelConfig Tiny(bool tied = false) {
  auto config = NamedModel("llama-tiny");
  REQUIRE(config.ok());
  config->tied_embeddings = tied;
  return *config;
}

// Text with structure to learn: token t depends on the one before it and on its place.
int32_t TokenAt(int64_t sample, int place) {
  uint64_t x = static_cast<uint64_t>(sample) * 0x9E3779B97F4A7C15 + 12345;
  x ^= x >> 29;
  const int start = static_cast<int>(x % 97);
  return 32 + (start + place * (1 + static_cast<int>(x >> 40) % 3)) % 90;
}

// Ends a document where rows are packed: one of 90 tokens, so most rows have two or none.
constexpr int32_t kEndOfDocument = 60;

testing::Sample TextSample(int64_t position) {
  testing::Sample sample;
  for (int t = 0; t < kSequenceLength; ++t) {
    sample.inputs.push_back(TokenAt(position, t));
    sample.targets.push_back(TokenAt(position, t + 1));
  }
  return sample;
}

Curve Train(const Run& run) {
  const BatchCut cut = run.cut();
  const int microbatches = static_cast<int>(MicrobatchCount(cut));
  const auto schedule =
      MakeSchedule(run.schedule, run.layout.pp, /*virtual_stages=*/0, microbatches);
  REQUIRE_OK(schedule);
  absl::StatusOr<Curve> curve = testing::Train(
      {.engine = {.model = run.model,
                  .layout = run.layout,
                  .seed = 11,
                  .dtype = run.dtype,
                  .reduce_dtype = run.reduce_dtype,
                  .recompute = run.recompute,
                  .sequence_parallel = run.layout.tp > 1,
                  .overlap_communication = run.overlap_communication,
                  .packed_documents = run.packed,
                  .micro_batch_size = cut.micro_batch_size,
                  .sequence_length = kSequenceLength,
                  .context_method = run.context_method,
                  .microbatches = microbatches,
                  .schedule = *schedule,
                  .bucket_count_min = kSeveralBuckets,
                  .zero_stage = run.zero_stage,
                  .reshard_after_forward = run.reshard_after_forward,
                  .offload_optimizer = run.offload_optimizer,
                  .offload_parameters = run.offload_parameters},
       .cut = cut,
       .steps = run.steps,
       .sample = TextSample,
       .end_of_document = kEndOfDocument,
       .adam =
           [](int step) {
             return UpdateParameters{.learning_rate = 1e-3 * std::min(1.0, step / 4.0),
                                     .epsilon = kEpsilon,
                                     .weight_decay = 0.1};
           },
       .transport = run.transport});
  REQUIRE_OK(curve);
  return *std::move(curve);
}

double RelativeError(double value, double expected) {
  return std::abs(value - expected) / std::abs(expected);
}

void CheckSameCurve(const Curve& curve, const Curve& expected) {
  CHECK(testing::CurveDifference(curve, expected) == "");
}

void CheckSameTensors(const Curve& curve, const Curve& expected) {
  CHECK(testing::TensorDifference(curve, expected) == "");
  CHECK(curve.unequal == std::vector<std::string>());
}

void CheckSameBits(const Curve& curve, const Curve& expected) {
  CHECK(curve.losses == expected.losses);
  CHECK(curve.grad_norms == expected.grad_norms);
  CHECK(curve.parameters == expected.parameters);
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
  const Curve expected = Train({model, {}, global_batch_size, global_batch_size});
  REQUIRE(expected.losses.back() < 0.9 * expected.losses.front());
  for (const Layout& layout : LayoutsOf(accumulate ? 4 : 8)) {
    INFO(layout.ToString() << (accumulate ? " with" : " without") << " accumulation");
    const int micro_batch_size = accumulate ? 1 : global_batch_size / layout.dp;
    CheckSameCurve(Train({model, layout, global_batch_size, micro_batch_size}), expected);
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
  const Curve expected = Train({Tiny(), {}, samples, samples});
  for (const Transport transport : testing::kTransports) {
    // Over dp 3 the ranks have 6, 5 and 5 samples; over dp 5 one has 4; 3 does not divide 16.
    for (const Layout layout : {Layout{2, 3, 1}, Layout{1, 3, 2}, Layout{1, 5, 1}}) {
      INFO(layout.ToString() << " over " << testing::ToString(transport));
      Run run{Tiny(), layout, samples, /*micro_batch_size=*/3};
      run.transport = transport;
      const Curve curve = Train(run);
      CheckSameCurve(curve, expected);
      CheckSameTensors(curve, expected);
    }
  }
}

TEST_CASE("copies of shards train like one process, and hold the same bits") {
  const Curve expected = Train({Tiny(true), {}, 8, 8});
  for (const Layout layout :
       {Layout{.dp = 4, .dp_replicate = 2}, Layout{.dp = 3, .dp_replicate = 3},
        Layout{.pp = 2, .dp = 4, .dp_replicate = 4}, Layout{.dp = 4, .tp = 2, .dp_replicate = 2}}) {
    INFO(layout.ToString());
    const Curve curve = Train({Tiny(true), layout, 8, 2});
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
    const Curve curve = Train(run);
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
  const Curve expected = Train({Tiny(true), {}, 8, 8});
  for (const Layout layout :
       {Layout{.dp = 4}, Layout{.dp = 3, .tp = 2}, Layout{.pp = 2, .dp = 4, .dp_replicate = 2}}) {
    CheckSharded({Tiny(true), layout, 8, 1}, expected);
  }
}

TEST_CASE("what is sharded into host memory trains to the same bits") {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const int zero_stage : {1, 2, 3}) {
      for (const Layout layout : {Layout{}, Layout{.pp = 2, .dp = 2}}) {
        INFO("ZeRO-" << zero_stage << " in " << DTypeName(dtype) << " over " << layout.ToString());
        Run run{Tiny(true), layout, 8, 2, dtype};
        run.zero_stage = zero_stage;
        run.steps = kStepsOfBits;
        const Curve expected = Train(run);
        run.offload_optimizer = true;
        for (const auto& [parameters, beside] : {std::pair(false, true), std::pair(false, false),
                                                 std::pair(true, true), std::pair(true, false)}) {
          if (parameters && zero_stage < 3) continue;
          run.offload_parameters = parameters;
          run.overlap_communication = beside;
          const Curve curve = Train(run);
          if (parameters && layout.dp == 1) {
            // Here alone there are shards: buckets, and so the sum of squares, are others.
            if (dtype == DType::kFloat32) CheckSameCurve(curve, expected);
            continue;
          }
          CheckSameBits(curve, expected);
        }
      }
    }
  }
}

TEST_CASE("backward passes in halves give the bits of whole ones") {
  for (const Layout layout : {Layout{.pp = 2}, Layout{.pp = 3, .tp = 2}}) {
    Run run{Tiny(true), layout, 8, 1};
    run.steps = kStepsOfBits;
    const Curve whole = Train(run);
    run.schedule = "zb-h1";
    CheckSameBits(Train(run), whole);
  }
}

TEST_CASE("the same run twice is the same bits") {
  for (const int zero_stage : {1, 2, 3}) {
    Run run{Tiny(), {2, 2, 2}, 8, 2};
    run.zero_stage = zero_stage;
    const Curve first = Train(run);
    CheckSameBits(Train(run), first);
  }
}

void CheckOverlapChangesNoBit(Run run) {
  INFO(run.layout.ToString() << " over " << testing::ToString(run.transport) << ", ZeRO-"
                             << run.zero_stage << ", " << ContextMethodName(run.context_method));
  run.steps = kStepsOfBits;
  const Curve beside = Train(run);
  run.overlap_communication = false;
  CheckSameBits(Train(run), beside);
}

TEST_CASE("collectives beside the arithmetic change no bit, over every transport") {
  for (const Transport transport : testing::kTransports) {
    for (const Layout& layout : {Layout{.dp = 4}, Layout{.dp = 4, .tp = 2, .dp_replicate = 2},
                                 Layout{.pp = 2, .dp = 2, .tp = 2}}) {
      Run run{Tiny(true), layout, 8, 2};
      run.transport = transport;
      CheckOverlapChangesNoBit(run);
    }
  }
}

TEST_CASE("collectives beside the arithmetic change no bit of what is sharded, nor over cp") {
  for (const int zero_stage : {2, 3}) {
    for (const Layout& layout : {Layout{.pp = 2, .dp = 2}, Layout{.dp = 2, .cp = 2}}) {
      Run run{Tiny(true), layout, 8, 2};
      run.zero_stage = zero_stage;
      CheckOverlapChangesNoBit(run);
    }
  }
  for (const ContextMethod method :
       {ContextMethod::kRing, ContextMethod::kAllGather, ContextMethod::kUlysses}) {
    Run run{Tiny(), {.tp = 2, .cp = 2}, 8, 4};
    run.context_method = method;
    CheckOverlapChangesNoBit(run);
  }
}

TEST_CASE("replicas hold the same bits after training") {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    const Curve curve = Train({Tiny(), {1, 4, 2}, 8, 2, dtype});
    for (int rank = 2; rank < 8; ++rank) {
      CHECK(curve.parameters[rank] == curve.parameters[rank % 2]);
    }
  }
}

TEST_CASE("what is recomputed changes no bit of the curve") {
  for (const char* schedule : {"1f1b", "dualpipe-v"}) {
    Run run{Tiny(), {2, 1, 2}, 8, 2};
    run.schedule = schedule;
    run.steps = kStepsOfBits;
    const Curve kept = Train(run);
    for (const Recompute& recompute :
         {Recompute::kSelective, Recompute::kFull, Recompute{.norms = true},
          Recompute{.attention = true, .layers = 1}, Recompute{.swiglu = true, .mlp = true},
          Recompute{.norms = true, .swiglu = true, .attention = true, .mlp = true}}) {
      INFO(schedule << ", " << recompute.norms << recompute.swiglu << recompute.attention
                    << recompute.mlp << recompute.middle);
      run.recompute = recompute;
      CHECK(Train(run).losses == kept.losses);
    }
  }
}

TEST_CASE("packed documents train alike on every layout, and not like plain rows") {
  const auto packed = [](const Layout& layout, int micro_batch_size, Recompute recompute) {
    Run run{Tiny(), layout, 8, micro_batch_size};
    run.recompute = recompute;
    run.packed = true;
    return Train(run);
  };
  const Curve expected = packed({}, 8, Recompute::kNone);
  CHECK(RelativeError(Train({Tiny(), {}, 8, 8}).losses.back(), expected.losses.back()) > 1e-4);
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
  const Curve expected = Train(one);
  for (const ContextMethod method :
       {ContextMethod::kRing, ContextMethod::kAllGather, ContextMethod::kUlysses}) {
    for (const Case& the_case : cases) {
      INFO(ContextMethodName(method) << " on " << the_case.layout.ToString());
      Run run{Tiny(true), the_case.layout, 8, 2};
      run.recompute = the_case.recompute;
      run.packed = true;
      run.context_method = method;
      run.transport = the_case.transport;
      const Curve curve = Train(run);
      CheckSameCurve(curve, expected);
      CheckSameTensors(curve, expected);
    }
  }
}

TEST_CASE("context parallelism twice is the same bits") {
  for (const ContextMethod method :
       {ContextMethod::kRing, ContextMethod::kAllGather, ContextMethod::kUlysses}) {
    Run run{Tiny(), {.dp = 2, .tp = 2, .cp = 2}, 8, 2};
    run.context_method = method;
    const Curve first = Train(run);
    CheckSameBits(Train(run), first);
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
  const Curve oracle = Train({Tiny(), {}, 8, 8});
  const Curve single = Train({Tiny(), {}, 8, 8, DType::kBFloat16});
  const double allowed = 2 * Distance(single, oracle);
  REQUIRE(allowed > 0);
  REQUIRE(single.losses.back() < 0.9 * single.losses.front());
  for (const Layout layout : {Layout{2, 1, 1}, Layout{1, 2, 1}, Layout{1, 1, 2}, Layout{2, 2, 2}}) {
    for (const DType reduce_dtype : {DType::kFloat32, DType::kBFloat16}) {
      INFO(layout.ToString() << ", sums over dp in " << DTypeName(reduce_dtype));
      CHECK(Distance(Train({Tiny(), layout, 8, 2, DType::kBFloat16, reduce_dtype}), oracle) <=
            allowed);
    }
  }
  for (const ContextMethod method :
       {ContextMethod::kRing, ContextMethod::kAllGather, ContextMethod::kUlysses}) {
    Run run{Tiny(), {.cp = 4}, 8, 2, DType::kBFloat16};
    run.context_method = method;
    INFO(ContextMethodName(method));
    CHECK(Distance(Train(run), oracle) <= allowed);
  }
}

}  // namespace
}  // namespace convene::worker

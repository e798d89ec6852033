// Pairs of runs that must agree to the bit, on CPUs and on GPUs.
#include <catch2/catch.hpp>
#include <utility>
#include <vector>

#include "worker_runtime/trainer/testing/tiny_run.h"

namespace convene::worker {
namespace {

using testing::CheckSameBits;
using testing::CheckSameCurve;
using testing::Curve;
using testing::CurveOf;
using testing::Tiny;
using testing::Transport;
using Run = testing::TinyRun;

constexpr int kRanksMax = 8;

void CheckOffloadChangesNoBit(const Layout& layout, int zero_stage, DType dtype) {
  INFO("ZeRO-" << zero_stage << " in " << DTypeName(dtype) << " over " << layout.ToString());
  Run run{Tiny(true), layout, 8, 2, dtype};
  run.zero_stage = zero_stage;
  run.steps = testing::StepsOfBits();
  // A GPU's own update may round otherwise than the host's.
  run.offload_optimizer = testing::OnGpus();
  run.overlap_communication = !testing::OnGpus();
  const Curve expected = CurveOf(run);
  run.offload_optimizer = true;
  for (const auto& [parameters, beside] : {std::pair(false, true), std::pair(false, false),
                                           std::pair(true, true), std::pair(true, false)}) {
    if (parameters && zero_stage < 3) continue;
    run.offload_parameters = parameters;
    run.overlap_communication = beside;
    const Curve curve = CurveOf(run);
    if (parameters && layout.dp == 1) {
      // Here alone there are shards: buckets, and so the sum of squares, are others.
      if (dtype == DType::kFloat32) CheckSameCurve(curve, expected);
      continue;
    }
    CheckSameBits(curve, expected);
  }
}

TEST_CASE("what is sharded into host memory trains to the same bits", "[once]") {
  if (!testing::HasPlacesOrSkips(kRanksMax)) return;
  const Layout several = {.pp = 2, .dp = 2};
  if (testing::OnGpus()) {
    CheckOffloadChangesNoBit(several, 1, DType::kBFloat16);
    CheckOffloadChangesNoBit(several, 3, DType::kFloat32);
    return;
  }
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const int zero_stage : {1, 2, 3}) {
      for (const Layout& layout : {Layout{}, several}) {
        CheckOffloadChangesNoBit(layout, zero_stage, dtype);
      }
    }
  }
}

TEST_CASE("backward passes in halves give the bits of whole ones", "[once]") {
  if (!testing::HasPlacesOrSkips(kRanksMax)) return;
  for (const Layout layout : {Layout{.pp = 2}, Layout{.pp = 3, .tp = 2}}) {
    Run run{Tiny(true), layout, 8, 1};
    run.steps = testing::StepsOfBits();
    const Curve whole = CurveOf(run);
    run.schedule = "zb-h1";
    CheckSameBits(CurveOf(run), whole);
  }
}

TEST_CASE("the same run twice is the same bits", "[once]") {
  if (!testing::HasPlacesOrSkips(kRanksMax)) return;
  for (const int zero_stage : {1, 2, 3}) {
    if (testing::OnGpus() && zero_stage < 3) continue;
    Run run{Tiny(), {2, 2, 2}, 8, 2};
    run.zero_stage = zero_stage;
    run.steps = testing::StepsOfBits();
    const Curve first = CurveOf(run);
    CheckSameBits(CurveOf(run), first);
  }
}

void CheckOverlapChangesNoBit(Run run) {
  INFO(run.layout.ToString() << " over " << testing::ToString(run.transport) << ", ZeRO-"
                             << run.zero_stage << ", " << ContextMethodName(run.context_method));
  run.steps = testing::StepsOfBits();
  const Curve beside = CurveOf(run);
  run.overlap_communication = false;
  // A GPU's product that leaves multiprocessors to a sum over tp may be another one than alone.
  if (testing::OnGpus() && run.layout.tp > 1) return CheckSameCurve(CurveOf(run), beside);
  CheckSameBits(CurveOf(run), beside);
}

TEST_CASE("collectives beside the arithmetic change no bit, over every transport", "[once]") {
  if (!testing::HasPlacesOrSkips(kRanksMax)) return;
  for (const Transport transport : testing::TestedTransports()) {
    for (const Layout& layout : {Layout{.dp = 4}, Layout{.dp = 4, .tp = 2, .dp_replicate = 2},
                                 Layout{.pp = 2, .dp = 2, .tp = 2}}) {
      Run run{Tiny(true), layout, 8, 2};
      run.transport = transport;
      CheckOverlapChangesNoBit(run);
    }
  }
}

TEST_CASE("collectives beside the arithmetic change no bit of what is sharded, nor over cp",
          "[once]") {
  if (!testing::HasPlacesOrSkips(kRanksMax)) return;
  for (const int zero_stage : {2, 3}) {
    for (const Layout& layout : {Layout{.pp = 2, .dp = 2}, Layout{.dp = 2, .cp = 2}}) {
      if (testing::OnGpus() && layout.cp > 1) continue;  // below
      Run run{Tiny(true), layout, 8, 2};
      run.zero_stage = zero_stage;
      CheckOverlapChangesNoBit(run);
    }
  }
  for (const ContextMethod method :
       {ContextMethod::kRing, ContextMethod::kAllGather, ContextMethod::kUlysses}) {
    Run run{Tiny(), {.tp = 2, .cp = 2}, 8, 4};
    if (testing::OnGpus()) run.global_batch_size = run.micro_batch_size = 1;
    run.context_method = method;
    CheckOverlapChangesNoBit(run);
    if (testing::OnGpus()) return;  // the others have nothing beside their arithmetic
  }
}

TEST_CASE("rows in chunks: the same bits beside the arithmetic, recomputed and in halves",
          "[once]") {
  if (!testing::HasPlacesOrSkips(kRanksMax)) return;
  Run run{Tiny(true), {.pp = 2, .dp = 1, .tp = 2}, 8, 2};
  run.row_chunks = 4;
  CheckOverlapChangesNoBit(run);
  run.steps = testing::StepsOfBits();
  const Curve kept = CurveOf(run);
  run.row_chunks = 1;
  CheckSameCurve(CurveOf(run), kept);
  run.row_chunks = 4;
  if (testing::OnGpus()) return;
  for (const Recompute& recompute :
       {Recompute::kSelective, Recompute::kFull, Recompute{.norms = true},
        Recompute{.norms = true, .swiglu = true, .attention = true, .mlp = true}}) {
    run.recompute = recompute;
    CheckSameBits(CurveOf(run), kept);
  }
  run.recompute = Recompute::kSelective;
  run.schedule = "zb-h1";
  CheckSameBits(CurveOf(run), kept);
}

// The run without shards, against the same one in each stage of ZeRO.
void CheckMuonsBits(Run run) {
  run.update_rule = &MuonRule();
  run.steps = testing::StepsOfBits();
  run.layout.dp_replicate = run.layout.dp;
  run.zero_stage = 0;
  const Curve copied = CurveOf(run);
  CHECK(copied.unequal == std::vector<std::string>());
  run.layout.dp_replicate = 1;
  for (const int stage : {1, 2, 3}) {
    if (stage == 2 && testing::OnGpus()) continue;
    INFO("stage " << stage);
    run.zero_stage = stage;
    const Curve sharded = CurveOf(run);
    CHECK(sharded.losses == copied.losses);
    CHECK(sharded.tensors == copied.tensors);
    run.overlap_communication = false;
    if (!testing::OnGpus()) CheckSameBits(CurveOf(run), sharded);
    run.overlap_communication = true;
  }
}

// The sums over two ranks are exact in either order, so the directions are the same bits.
TEST_CASE("Muon's whole matrices have the same bits however they are sharded", "[once]") {
  if (!testing::HasPlacesOrSkips(kRanksMax)) return;
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    CheckMuonsBits({Tiny(), {.dp = 2, .tp = 2}, 2, 1, dtype});
  }
}

TEST_CASE("so have those of experts, on all ranks of dp and on one of ep", "[once]") {
  if (!testing::HasPlacesOrSkips(kRanksMax)) return;
  ModelConfig model = Tiny();
  model.layers = 2;
  model.family = NamedModel("moe-tiny")->family;
  model.experts = {.count = 4, .chosen = 2, .ffn_size = 16};
  for (const int ep : {1, 2}) {
    INFO("ep " << ep);
    CheckMuonsBits({model, {.dp = 2, .tp = 2, .ep = ep}, 2, 1, DType::kBFloat16});
  }
}

TEST_CASE("replicas hold the same bits after training") {
  if (testing::OnGpus()) return;  // copies_test has it
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    const Curve curve = CurveOf({Tiny(), {1, 4, 2}, 8, 2, dtype});
    for (int rank = 2; rank < 8; ++rank) {
      CHECK(curve.parameters[rank] == curve.parameters[rank % 2]);
    }
  }
}

TEST_CASE("what is recomputed changes no bit of the curve") {
  if (testing::OnGpus()) return;  // one rank's is in gradient_test, others in gpu_layout_test
  for (const char* schedule : {"1f1b", "dualpipe-v"}) {
    Run run{Tiny(), {2, 1, 2}, 8, 2};
    run.schedule = schedule;
    run.steps = testing::StepsOfBits();
    const Curve kept = CurveOf(run);
    for (const Recompute& recompute :
         {Recompute::kSelective, Recompute::kFull, Recompute{.norms = true},
          Recompute{.attention = true, .layers = 1}, Recompute{.swiglu = true, .mlp = true},
          Recompute{.norms = true, .swiglu = true, .attention = true, .mlp = true}}) {
      INFO(schedule << ", " << recompute.norms << recompute.swiglu << recompute.attention
                    << recompute.mlp << recompute.middle);
      run.recompute = recompute;
      CHECK(CurveOf(run).losses == kept.losses);
    }
  }
}

TEST_CASE("context parallelism twice is the same bits") {
  if (testing::OnGpus()) return;  // slow there, and its ring is in a pair above
  for (const ContextMethod method :
       {ContextMethod::kRing, ContextMethod::kAllGather, ContextMethod::kUlysses}) {
    Run run{Tiny(), {.dp = 2, .tp = 2, .cp = 2}, 8, 2};
    run.context_method = method;
    run.steps = testing::StepsOfBits();
    const Curve first = CurveOf(run);
    CheckSameBits(CurveOf(run), first);
  }
}

}  // namespace
}  // namespace convene::worker

// Ranks with a GPU each train like one process on a CPU: the code of comm/nccl, the order of work
// in streams, and the CUDA kernels. For programs whose ranks have GPUs (testing/places.h), beside
// layout_property_test, which draws layouts there too.
#include <catch2/catch.hpp>
#include <cmath>
#include <string>
#include <utility>

#include "tools/base/testing/status_testing.h"
#include "worker_runtime/testing/places.h"
#include "worker_runtime/trainer/testing/layout_run.h"

namespace convene::worker {
namespace {

using testing::Curve;
using testing::LayoutCase;
using testing::TrainingRun;

LayoutCase CaseOf(const std::string& text) {
  const auto the_case = testing::CaseOfText(text);
  REQUIRE_OK(the_case);
  REQUIRE_OK(testing::LegalLayout(*the_case));
  return *the_case;
}

// Two blocks of a small model, several documents a row, some of whose tokens do not count.
constexpr char kTask[] =
    " layers=2 hidden=16 kv_heads=2 queries_a_key=2 head_size=4 ffn=8 vocabulary=16 tied=1"
    " sequence_length=8 global_batch=4 packed=1 masked=tokens clip=1";

TEST_CASE("the layouts that people use train on GPUs like one process on a CPU") {
  if (!testing::HasPlacesOrSkips(4)) return;
  for (const char* const layout : {
           "tp=2 sequence_parallel=on",
           "tp=4 sequence_parallel=on bucket=1",
           "dp_shard=2 zero_stage=3 bucket=1",
           "dp_replicate=2 dp_shard=2 zero_stage=3 reshard=0 offload=all",
           "cp=2 cp_method=ring",
           "cp=2 cp_method=allgather",
           "cp=2 cp_method=ulysses",
           "pp=2 schedule=zb-v uneven_cut=1",
           "pp=2 schedule=interleaved dp_shard=2 bucket=1",
           "dp_shard=2 tp=2 zero_stage=2 sequence_parallel=on offload=optimizer",
       }) {
    INFO(layout);
    CHECK(testing::Difference(CaseOf(layout + std::string(kTask))) == "");
  }
}

// Parts that a few random layouts may miss: experts with their own parallelism, latent attention,
// sinks and windows by turns, and matrices that a rank owns whole.
TEST_CASE("experts, latents, windows, sinks and Muon train on GPUs like one process on a CPU") {
  if (!testing::HasPlacesOrSkips(4)) return;
  const std::string experts = " experts=4 chosen=2 expert_ffn=4 router_losses=1";
  for (const std::string& parts : {
           "family=moe-tiny dp_shard=2 ep=2" + experts,
           "family=moe-tiny dp_shard=2 ep=2 tp=2 zero_stage=3 optimizer=muon" + experts,
           "family=deepseek-tiny dp_shard=4 ep=2 zero_stage=2 micro_batch=1" + experts,
           // An even load fills the memory of experts: most of them get more.
           "family=qwen3-moe-tiny dp_shard=2 ep=2 expert_memory=10 offload=optimizer" + experts,
           "family=mla-tiny tp=2 recompute=attention" + experts,
           "family=mla-tiny pp=2 schedule=zb-h1 optimizer=muon" + experts,
           "family=gpt-oss-tiny window=3 cp=2 cp_method=ring" + experts,
           "family=gpt-oss-tiny window=3 dp_shard=2 ep=2 optimizer=muon" + experts,
           std::string("family=gemma3-tiny window=3 layers=6 cp=2 cp_method=ulysses"),
           std::string("tp=2 dp_shard=2 zero_stage=3 optimizer=muon"),
       }) {
    INFO(parts);
    CHECK(testing::Difference(CaseOf(kTask + (" " + parts))) == "");
  }
}

// The two devices round in other places: a step in bf16 moves a loss by some 1e-4 of it.
TEST_CASE("in bf16 GPUs train like CPUs, and twice the same", "[bf16]") {
  if (!testing::HasPlacesOrSkips(4)) return;
  // cuDNN takes heads of 8, and none of 4.
  const std::string sharded = "dp_shard=2 tp=2 zero_stage=2 sequence_parallel=on bucket=1";
  using Change = std::pair<std::string, std::string>;
  const auto [layout, change] =
      GENERATE_COPY(Change(sharded, ""), Change(sharded, " head_size=8"),
                    Change(sharded, " head_size=8 packed=0"),
                    Change("cp=2 cp_method=ring", " head_size=8 packed=0"));
  INFO(layout << change);
  const LayoutCase the_case = CaseOf(layout + kTask + change);
  const auto train = [](TrainingRun run) {
    run.engine.dtype = DType::kBFloat16;
    auto curve = testing::Train(run);
    REQUIRE_OK(curve);
    return *std::move(curve);
  };
  const Curve expected = train(testing::RunOf(the_case, /*on_gpus=*/false));
  const Curve curve = train(testing::RunOf(the_case));
  for (size_t step = 0; step < expected.losses.size(); ++step) {
    INFO("step " << step);
    CHECK(std::abs(curve.losses[step] - expected.losses[step]) < 2e-3 * expected.losses[step]);
  }
  const Curve again = train(testing::RunOf(the_case));
  CHECK(again.losses == curve.losses);
  CHECK(again.parameters == curve.parameters);
}

}  // namespace
}  // namespace convene::worker

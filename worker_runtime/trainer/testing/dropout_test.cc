// The dropout of adapters in training: one mask whatever the layout, and none in a validation.
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tools/base/status_macros.h"
#include "tools/base/testing/status_testing.h"
#include "worker_runtime/testing/places.h"
#include "worker_runtime/trainer/testing/layout_run.h"

namespace convene::worker {
namespace {

using testing::Curve;
using testing::TrainingRun;

constexpr int kLength = 8;

testing::LayoutCase CaseOf(const std::string& layout) {
  const auto the_case = testing::CaseOfText(
      absl::StrCat("lora=all layers=4 hidden=16 kv_heads=2 head_size=4 ffn=24 vocabulary=16 "
                   "sequence_length=",
                   kLength, " global_batch=6 ", layout));
  REQUIRE_OK(the_case);
  REQUIRE_OK(testing::LegalLayout(*the_case));
  return *the_case;
}

TrainingRun RunWithDropout(const testing::LayoutCase& the_case) {
  TrainingRun run = testing::RunOf(the_case);
  run.engine.model.adapter.dropout = 0.25;
  return run;
}

TEST_CASE("adapters with dropout learn the same on every layout") {
  if (testing::OnGpus()) return;  // layout_property_test has such cases
  for (const char* const layout :
       {"dp_shard=3 micro_batch=2", "tp=2 cp=2 sequence_parallel=on", "pp=2 recompute=full",
        "tp=2 row_chunks=2 sequence_parallel=on recompute=selective",
        "dp_shard=2 zero_stage=3 micro_batch=1", "pp=2 schedule=zb-h1", "family=mla-tiny tp=2",
        "family=deepseek-tiny dp_shard=2 ep=2", "family=deepseek-tiny lora=some dp_shard=2 ep=2",
        "family=moe-tiny lora=some tp=2 recompute=full",
        "family=qwen3-moe-tiny lora=some dp_shard=2 tp=2 ep=2 zero_stage=3 micro_batch=1",
        "family=deepseek-tiny lora=some pp=2 schedule=zb-h1 recompute=full",
        "family=moe-tiny lora=some dp_shard=2 ep=2 experts=4 chosen=2 expert_memory=1"}) {
    INFO(layout);
    const testing::LayoutCase the_case = CaseOf(layout);
    const auto expected = testing::Train(RunWithDropout(testing::OneProcess(the_case)));
    const auto curve = testing::Train(RunWithDropout(the_case));
    REQUIRE_OK(expected);
    REQUIRE_OK(curve);
    const std::string difference =
        testing::CurveDifference(*curve, *expected) + testing::TensorDifference(*curve, *expected);
    INFO(difference);
    CHECK(difference.empty());
    CHECK(curve->unequal.empty());
  }
}

TEST_CASE("dropout changes what adapters learn, and no validation") {
  if (!testing::HasPlacesOrSkips(1)) return;
  TrainingRun run = RunWithDropout(CaseOf(""));
  const std::vector<int32_t> tokens(
      size_t{1} * run.engine.micro_batch_size * run.engine.sequence_length, 3);
  std::vector<double> validations;
  run.between = [&](int, int, Engine& engine) -> absl::Status {
    for (const int64_t first_sample : {0, 1000}) {
      const std::vector<int64_t> samples(run.engine.micro_batch_size, first_sample);
      const TokenBatch batch = {.inputs = tokens.data(),
                                .targets = tokens.data(),
                                .counted_targets = static_cast<int64_t>(tokens.size()),
                                .samples = samples.data()};
      CONVENE_ASSIGN_OR_RETURN(const ForwardResult result, engine.ForwardLoss(batch, 1));
      validations.push_back(result.loss);
    }
    return absl::OkStatus();
  };
  const auto with = testing::Train(run);
  REQUIRE_OK(with);
  for (size_t i = 0; i < validations.size(); i += 2) CHECK(validations[i] == validations[i + 1]);
  run.between = nullptr;
  run.engine.model.adapter.dropout = 0;
  const auto without = testing::Train(run);
  REQUIRE_OK(without);
  // B begins as zeros, so the first step's loss knows nothing of A's input.
  CHECK(with->losses[0] == without->losses[0]);
  CHECK(with->grad_norms[0] != without->grad_norms[0]);
}

}  // namespace
}  // namespace convene::worker

// Random legal layouts, schedules, models and batches: each trains like one process. layout_test
// has the layouts that people use, over more steps; layout_case.h says how an axis is
// added.
//
// A fault that one process has too stays hidden here. Found elsewhere: a wrong op, by the reference
// in double and its slopes (ops/reference_test, ops_test, attention_test); a wrong model, by
// PyTorch's logits, gradients and fifty steps (golden_test, golden_layout_test), by slopes of the
// whole loss (model/gradient_test) and by documents apart (model/documents_test); a wrong count of
// tokens or a wrong order of samples, by masked_loss_test, trainer/batches_test and
// data/sample_order_test; a missing
// event, which no CPU run shows, by overlap_test, and on GPUs by layout_bits_test.
#include <catch2/catch.hpp>

#include "tools/base/testing/status_testing.h"
#include "worker_runtime/testing/places.h"
#include "worker_runtime/trainer/testing/layout_run.h"

namespace convene::worker {
namespace {

using testing::Curve;
using testing::LayoutCase;

constexpr int kRanksMax = 8;

TEST_CASE("every layout that may be asked for trains like one process", "[once]") {
  if (!testing::HasPlacesOrSkips(kRanksMax)) return;
  if (testing::OnGpus()) {
    testing::CheckSeeds(
        "CONVENE_EMULATED_GPUS=8 bazel run "
        "//worker_runtime/trainer/testing:on_gpus_emulated_test_program -- 'every layout*'",
        /*seeds=*/6);
  } else {
    testing::CheckSeeds("bazel run //worker_runtime/trainer/testing:layout_property_test",
                        testing::CheckedSeeds());
  }
}

TEST_CASE("a layout twice is the same bits") {
  if (testing::OnGpus()) return;  // layout_bits_test has it, with smaller models
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    const LayoutCase the_case = testing::CaseOfSeed(seed);
    INFO(testing::TextOf(the_case));
    const absl::StatusOr<Curve> first = testing::Train(testing::RunOf(the_case));
    const absl::StatusOr<Curve> second = testing::Train(testing::RunOf(the_case));
    REQUIRE_OK(first);
    REQUIRE_OK(second);
    CHECK(first->losses == second->losses);
    CHECK(first->grad_norms == second->grad_norms);
    CHECK(first->parameters == second->parameters);
  }
}

}  // namespace
}  // namespace convene::worker

// A router's bias on every device. All results are whole numbers, or one rate away from them.
#include "worker_runtime/ops/router_bias.h"

#include <catch2/catch.hpp>
#include <vector>

#include "worker_runtime/ops/testing/op_arrays.h"
#include "worker_runtime/testing/places.h"

namespace convene::worker {
namespace {

using testing::Array;
using testing::DeviceArray;
using testing::TheDevice;
using testing::TheStream;

TEST_CASE("the imbalance of an expert is its choices above the mean, times the experts") {
  if (!testing::HasPlacesOrSkips(1)) return;
  const RouterShape shape = {.rows = 8, .experts = 4, .chosen = 2};
  // Of two sequences: counts, shares, squares.
  const Array<float> statistics({4, 0, 1, 3, .1f, .2f, .3f, .4f, 9,  //
                                 5, 1, 2, 0, .1f, .2f, .3f, .4f, 9});
  const std::vector<float> expected = {4 * 9 - 16, 4 * 1 - 16, 4 * 3 - 16, 4 * 3 - 16};
  const Array<float> imbalance({7, 7, 7, 7});
  RouterImbalance(2, shape, statistics.data(), /*adds=*/false, imbalance.data(), TheStream());
  CHECK(imbalance.Fetch() == expected);
  RouterImbalance(2, shape, statistics.data(), /*adds=*/true, imbalance.data(), TheStream());
  CHECK(imbalance.Fetch() == std::vector<float>{40, -24, -8, -8});
}

TEST_CASE("the bias falls where more tokens come, rises where fewer do, and else stays") {
  if (!testing::HasPlacesOrSkips(1)) return;
  std::vector<float> imbalances(300), biases(300, 1.0f), moved(300);
  for (int i = 0; i < 300; ++i) {
    imbalances[i] = static_cast<float>(i % 3 - 1) * static_cast<float>(i + 1);
    moved[i] = i % 3 == 0 ? 1.25f : i % 3 == 1 ? 1.0f : 0.75f;
  }
  for (const SkipReason skip : {SkipReason::kNone, SkipReason::kNoNumber}) {
    const Array<float> imbalance(imbalances);
    const Array<float> bias(biases);
    const DeviceArray<StepControl> control({{.gradient_scale = 3, .skip = skip}}, TheDevice());
    RouterBiasStep(300, 0.25f, control.data(), imbalance.data(), bias.data(), TheStream());
    CHECK(bias.Fetch() == (skip != SkipReason::kNone ? biases : moved));
    CHECK(imbalance.Fetch() == std::vector<float>(300));
  }
}

}  // namespace
}  // namespace convene::worker

// The loss of pairs of answers on every device, beside its formula in double.
#include "worker_runtime/ops/preference_loss.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <vector>

#include "worker_runtime/ops/testing/op_arrays.h"
#include "worker_runtime/testing/places.h"

namespace convene::worker {
namespace {

using testing::DeviceArray;
using testing::TheDevice;
using testing::TheStream;

constexpr double kBeta = 0.25;
constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

double LossOf(double chosen, double rejected, double reference) {
  return std::log1p(std::exp(-kBeta * (rejected - chosen - reference)));
}

TEST_CASE("a pair's loss falls with its margin, and its weights are the loss's derivatives") {
  if (!testing::HasPlacesOrSkips(1)) return;
  const std::vector<double> losses = {3, 5, 40, 12, 7, 7, 1, 2, 20, 23};
  const std::vector<double> references = {0.5, -3, 0, kNone, 11};
  const DeviceArray<double> answer_losses(losses, TheDevice());
  const DeviceArray<double> of_reference(references, TheDevice());
  const DeviceArray<float> scale({0.5f}, TheDevice());
  const DeviceArray<double> sum({100}, TheDevice());
  const DeviceArray<double> rewards({10, 20}, TheDevice());
  const DeviceArray<float> weights(std::vector<float>(10, 9), TheDevice());
  PreferenceLoss(5, kBeta, answer_losses.data(), of_reference.data(), scale.data(), sum.data(),
                 rewards.data(), weights.data(), TheStream());
  double expected = 100;
  for (int i = 0; i < 5; ++i) {
    if (std::isnan(references[i])) {
      CHECK(weights.Fetch()[2 * i] == 0);
      CHECK(weights.Fetch()[2 * i + 1] == 0);
      continue;
    }
    expected += LossOf(losses[2 * i], losses[2 * i + 1], references[i]);
    const double step = 1e-5;
    const double by_chosen = (LossOf(losses[2 * i] + step, losses[2 * i + 1], references[i]) -
                              LossOf(losses[2 * i] - step, losses[2 * i + 1], references[i])) /
                             (2 * step);
    CHECK(weights.Fetch()[2 * i] == Approx(0.5 * by_chosen).epsilon(1e-6));
    CHECK(weights.Fetch()[2 * i + 1] == -weights.Fetch()[2 * i]);
  }
  CHECK(sum.Fetch()[0] == Approx(expected).epsilon(1e-12));
  // Margins: 1.5, -25, 0, none, -8, each by a quarter.
  CHECK(rewards.Fetch() == std::vector<double>{11, 20 - 31.5 * kBeta});
}

TEST_CASE("margins of any size give numbers, and without weights there is the loss alone") {
  if (!testing::HasPlacesOrSkips(1)) return;
  const DeviceArray<double> answer_losses({1e6, 0, 0, 1e6}, TheDevice());
  const DeviceArray<double> references({0, 0}, TheDevice());
  const DeviceArray<float> scale({1}, TheDevice());
  const DeviceArray<double> sum({0}, TheDevice());
  const DeviceArray<float> weights({9, 9, 9, 9}, TheDevice());
  PreferenceLoss(2, kBeta, answer_losses.data(), references.data(), nullptr, sum.data(), nullptr,
                 nullptr, TheStream());
  CHECK(sum.Fetch()[0] == Approx(kBeta * 1e6));
  PreferenceLoss(2, kBeta, answer_losses.data(), references.data(), scale.data(), sum.data(),
                 nullptr, weights.data(), TheStream());
  CHECK(weights.Fetch() == std::vector<float>{0.25f, -0.25f, 0, 0});
}

}  // namespace
}  // namespace convene::worker

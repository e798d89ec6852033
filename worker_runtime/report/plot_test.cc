#include "worker_runtime/report/plot.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>

namespace convene::worker {
namespace {

// A straight line down from (1, 5.75) to (16, 2).
LossPlotData Falling() {
  LossPlotData data;
  for (int step = 1; step <= 16; ++step) data.training.push_back({double(step), 6 - step * 0.25});
  return data;
}

TEST_CASE("a falling loss falls, with numbers at both axes") {
  CHECK(LossPlot(Falling(), 12, 5) ==
        "   5.750 │⠑⢢\n"
        "         │  ⠉⠢⢄\n"
        "         │    ⠈⠒⢄⡀\n"
        "         │       ⠘⠤⡀\n"
        "   2.000 │         ⠈⠱⣀\n"
        "         └────────────\n"
        "          1    8    16\n"
        "          step    ⠤ training loss\n");
}

TEST_CASE(
    "validations and restarts are marked and explained, and a loss that is no number is a gap") {
  LossPlotData data = Falling();
  data.training[8].y = NAN;
  data.validation = {{8, 3}, {16, 5}};
  data.restarts = {12, 99};
  CHECK(LossPlot(data, 8, 4) ==
        "   5.750 │⠑⢄   ┊ o\n"
        "         │  ⠑⢄ ┊\n"
        "         │   o⠐⢄\n"
        "   2.000 │     ┊⠑⢄\n"
        "         └────────\n"
        "          1  8  16\n"
        "          step    ⠤ training loss   o validation loss   ┊ restart\n");
}

TEST_CASE("a single point, and none at all, can be plotted") {
  LossPlotData data;
  CHECK(LossPlot(data, 8, 2) == "no losses to plot\n");
  data.training = {{5, NAN}};
  CHECK(LossPlot(data, 8, 2) == "no losses to plot\n");
  data.training = {{5, 2.5}};
  CHECK(LossPlot(data, 0, 0) ==
        "   2.500 │    ⡀\n"
        "   2.500 │\n"
        "         └────────\n"
        "          5\n"
        "          step    ⠤ training loss\n");
}

TEST_CASE("an early spike and a long run stay inside the area") {
  LossPlotData data;
  for (int step = 1; step <= 20'000; ++step) data.training.push_back({double(step), 2.0});
  data.training[100].y = 1e30;
  const std::string plot = LossPlot(data, 60, 10);
  CHECK(std::count(plot.begin(), plot.end(), '\n') == 13);
  CHECK_THAT(plot, Catch::StartsWith("   1e+30 │"));
}

TEST_CASE("a restart is where the epoch of the file's steps changes") {
  MetricsHistory history;
  const int64_t epochs[] = {4, 4, 5, 5, 5, 7};
  for (const int64_t epoch : epochs) {
    StepMetrics& metrics = history.steps.emplace_back();
    metrics.step = static_cast<int64_t>(history.steps.size());
    metrics.epoch = epoch;
  }
  history.validations.push_back({.step = 6, .validation_loss = 2});
  const LossPlotData data = LossPlotDataOf(history);
  CHECK(data.training.size() == 6);
  CHECK(data.restarts == std::vector<double>{3, 6});
  REQUIRE(data.validation.size() == 1);
  CHECK(data.validation[0].x == 6);
  CHECK(data.validation[0].y == 2);
}

}  // namespace
}  // namespace convene::worker

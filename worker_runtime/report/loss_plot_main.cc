// loss_plot METRICS_FILE: draws the loss curve of a run from the file that convene-train wrote with
// --metrics-file.
#include <cstdio>
#include <string>

#include "absl/status/statusor.h"
#include "tools/base/exit_code.h"
#include "worker_runtime/report/metrics.h"
#include "worker_runtime/report/plot.h"

int main(int argc, char** argv) {
  const std::string argument = argc == 2 ? argv[1] : "";
  if (argument.empty() || argument[0] == '-') {
    const bool is_help = argument == "--help" || argument == "-h";
    std::fputs("usage: loss_plot METRICS_FILE\n", is_help ? stdout : stderr);
    return static_cast<int>(is_help ? convene::ExitCode::kOk : convene::ExitCode::kUsage);
  }
  const absl::StatusOr<convene::worker::MetricsHistory> history =
      convene::worker::ReadMetrics(argument);
  if (!history.ok()) {
    std::fprintf(stderr, "loss_plot: %s\n", std::string(history.status().message()).c_str());
    return static_cast<int>(convene::ExitCodeForStatus(history.status()));
  }
  // With its axis the plot fits the classic 80 columns.
  constexpr int kWidth = 68;
  constexpr int kHeight = 16;
  const std::string plot = LossPlot(convene::worker::LossPlotDataOf(*history), kWidth, kHeight);
  std::fputs(plot.c_str(), stdout);
  return 0;
}

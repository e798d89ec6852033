// PURE. A loss curve in a terminal, of braille dots (two by four a character).
#pragma once

#include <string>
#include <vector>

#include "worker_runtime/report/metrics.h"

namespace convene::worker {

struct PlotPoint {
  double x = 0;
  double y = 0;
};

struct LossPlotData {
  std::vector<PlotPoint>
      training;  // ascending in x; drawn as a line, with a gap where y is not finite
  std::vector<PlotPoint> validation;  // drawn as single 'o's over the line
  std::vector<double> restarts;       // drawn as vertical lines under it
};

// Training and validation losses over steps, and a restart at the first step of each epoch after
// the file's first.
LossPlotData LossPlotDataOf(const MetricsHistory& history);

// UTF-8 lines with axes, numbers and a legend; with a newline at the end. The curve's area has
// `width` x `height` characters (each at least 8 and 2, less is raised); around it stand 10 columns
// and 3 lines. "no losses to plot\n" without any finite point.
std::string LossPlot(const LossPlotData& data, int width, int height);

}  // namespace convene::worker

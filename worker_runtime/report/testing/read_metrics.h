// Reads a whole metrics file back.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_split.h"
#include "tools/base/files.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/report/metrics.h"

namespace convene::worker {

// In file order.
struct MetricsHistory {
  std::vector<StepMetrics> steps;
  std::vector<ValidationMetrics> validations;
  std::vector<CheckpointMetrics> checkpoints;
  std::vector<SampleMetrics> samples;
};

// Errors: ReadFile's and ParseMetricsLine's.
inline absl::StatusOr<MetricsHistory> ReadMetrics(const std::string& path) {
  CONVENE_ASSIGN_OR_RETURN(const std::string content, ReadFile(path));
  MetricsHistory history;
  for (const absl::string_view line : absl::StrSplit(content, '\n', absl::SkipEmpty())) {
    CONVENE_ASSIGN_OR_RETURN(const MetricsRecord record, ParseMetricsLine(line));
    if (const auto* step = std::get_if<StepMetrics>(&record)) {
      history.steps.push_back(*step);
    } else if (const auto* validation = std::get_if<ValidationMetrics>(&record)) {
      history.validations.push_back(*validation);
    } else if (const auto* sample = std::get_if<SampleMetrics>(&record)) {
      history.samples.push_back(*sample);
    } else {
      history.checkpoints.push_back(std::get<CheckpointMetrics>(record));
    }
  }
  return history;
}

}  // namespace convene::worker

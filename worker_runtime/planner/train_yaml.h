// PURE. A layout as a configuration of convene-train.
#pragma once

#include <cstdint>
#include <string>

#include "worker_runtime/planner/job.h"

namespace convene::worker {

// The settings of a run that have no part in its layout.
struct RunSettings {
  std::string model;  // its name, or its path
  std::string optimizer = "adamw";
  std::string data = "tokens.bin";
  int64_t steps = 1000;
};

// "fp32", "bf16" or "fp8": --precision's word.
const char* PrecisionName(const PlanJob& job);

// YAML that `convene-train --config` takes, and by which it trains the job in this layout.
std::string TrainYaml(const RunSettings& settings, const PlanJob& job, const Strategy& strategy);

}  // namespace convene::worker

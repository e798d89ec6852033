// A description of other GPUs and networks: --cluster FILE.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "worker_runtime/planner/hardware.h"

namespace convene::launcher {

// PURE. A YAML map: `gpu`, a name of the tables or a new one; `memory_gib`, `bf16_tflops`,
// `fp8_tflops`, `fp32_tflops`, `memory_gb_per_s`, `link_gb_per_s`, `node`, `domain`, `watts`;
// `network`, a name of the tables or a new one, with `network_gb_per_s` (of one GPU, in one
// direction) and `network_microseconds`. A new GPU names all numbers but the last three and
// domain; one of the tables keeps what is not named. InvalidArgument, with the key and the right
// form, for all else.
absl::StatusOr<worker::Cluster> ParseCluster(const std::string& text);

// Reads the file. NotFound and PermissionDenied: ReadFile's. InvalidArgument: ParseCluster's.
absl::StatusOr<worker::Cluster> ReadCluster(const std::string& path);

}  // namespace convene::launcher

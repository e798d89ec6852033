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
// form, for all else, and for a domain of fewer GPUs than a machine has. `needs_network`: else the
// caller has another network, and the file may have none, whose bandwidth is then 0.
absl::StatusOr<worker::Cluster> ParseCluster(const std::string& text, bool needs_network = true);

// Reads the file. NotFound and PermissionDenied: ReadFile's. InvalidArgument: ParseCluster's.
absl::StatusOr<worker::Cluster> ReadCluster(const std::string& path, bool needs_network = true);

}  // namespace convene::launcher

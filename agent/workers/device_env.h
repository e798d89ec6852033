// PURE. One visible device for each worker: --virtual-local-rank, by torchrun's rules (PyTorch
// 2.15, local_elastic_agent.py, _set_local_rank_env).
#pragma once

#include <map>
#include <string>

#include "absl/status/statusor.h"

namespace convene::agent {

// The variables that let a worker see only its own device: the entry of
// CUDA_VISIBLE_DEVICES (on ROCm HIP_VISIBLE_DEVICES, then both are set) at its local rank, as it
// stands there, be it a number or a UUID; without a list the local rank itself. InvalidArgument:
// the list is too short.
absl::StatusOr<std::map<std::string, std::string>> OneVisibleDevice(
    const std::map<std::string, std::string>& environment, int local_rank);

}  // namespace convene::agent

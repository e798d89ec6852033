// PURE. The table of a step's times.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "worker_runtime/device/op_profile.h"

namespace convene::worker {

// One line an op, the longest first within its group, groups by their sums; then the gaps: the rest
// of `seconds` that is in no op (communication, the host, waiting). `seconds` is the time of
// `steps` steps. Ends with a newline. "" when steps is 0.
//
//   profile of 20 steps        ms a step   share
//   products                       10.10   66.0%
//     MatMul                       10.10   66.0%
//   gaps                            0.31    2.0%
//   step                           15.30
std::string ProfileText(const std::vector<OpTime>& times, int64_t steps, double seconds);

}  // namespace convene::worker

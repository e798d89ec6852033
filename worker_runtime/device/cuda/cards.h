// PURE. The NVIDIA cards that this program's kernels run on.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"

namespace convene::worker::cuda {

// The compute capabilities that the kernels were compiled for, times ten (8.9: 89), in the order of
// Bazel's --define=cuda_archs: machine code of each, and PTX of the last.
std::vector<int> BuiltArchs();

// OK where a card of compute capability `major`.`minor` runs kernels that were compiled for `archs`
// (not empty, as above): machine code runs on its own major version from its own minor version on
// (Jetson Orin's, 8.7, on itself alone, and no other there), PTX on every later card (CUDA C++
// Programming Guide, "Binary Compatibility" and "PTX Compatibility"). Else FailedPrecondition,
// which says what to do. `name`: the card's, for the message.
absl::Status CheckCard(const std::string& name, int major, int minor,
                       const std::vector<int>& archs);

}  // namespace convene::worker::cuda

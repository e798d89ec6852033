// PURE. The frequencies of rotary positions (rope.h).
#pragma once

#include <vector>

#include "worker_runtime/ops/rope_scaling.h"

namespace convene::worker {

// theta^(-2i/head_size) for each i < head_size / 2, scaled.
std::vector<double> RopeFrequencies(int head_size, double theta, const RopeScaling& scaling);

}  // namespace convene::worker

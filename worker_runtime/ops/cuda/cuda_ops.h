// The ops on a GPU; contracts in ../*.h.
#pragma once

#include "worker_runtime/ops/ops.h"

namespace convene::worker::cuda {
#include "worker_runtime/ops/backend.inc"
}  // namespace convene::worker::cuda

// The ops on a CPU; contracts in ../*.h.
#pragma once

#include "worker_runtime/ops/ops.h"

namespace convene::worker::cpu {
#include "worker_runtime/ops/backend.inc"
}  // namespace convene::worker::cpu

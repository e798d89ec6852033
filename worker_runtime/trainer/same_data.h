// Whether all ranks have the same data.
#pragma once

#include "absl/status/status.h"
#include "worker_runtime/comm/collective.h"
#include "worker_runtime/device/stream.h"
#include "worker_runtime/trainer/run_data.h"

namespace convene::worker {

// Every rank calls it with its own data. FailedPrecondition, on all ranks: the tokens differ.
// Errors else: the collective's.
absl::Status CheckSameData(const RunData& data, Collective& host, Stream& stream);

}  // namespace convene::worker

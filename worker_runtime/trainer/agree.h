// What can fail on one rank alone fails on all of them, with the same words.
#pragma once

#include "absl/status/status.h"
#include "worker_runtime/comm/collective.h"
#include "worker_runtime/device/stream.h"

namespace convene::worker {

// What one rank met in a checkpoint that makes it none, for everybody: an older one may be better.
bool IsDamage(const absl::Status& status);

// Every rank calls it with how its part went. OK on all ranks when all are OK. Otherwise the lowest
// failed rank's error on all of them, one that is no damage before one that is: with its code, so
// that whichever process ends first ends with the exit code of the cause, and with
// "rank R could not `deed`: " before its first 1000 bytes on those that fared better. Errors of the
// collective as they are.
absl::Status Agree(const absl::Status& mine, const char* deed, Collective& world, Stream& stream);

}  // namespace convene::worker

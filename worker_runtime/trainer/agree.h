// What can fail on one rank alone fails on all of them, with the same words.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker_runtime/comm/collective.h"
#include "worker_runtime/device/stream.h"

namespace convene::worker {

// What one rank met in a checkpoint that makes it none, for everybody: an older one may be better.
bool IsDamage(const absl::Status& status);

// What all ranks agreed on: the verdict is OK where every rank is OK. Otherwise it is the lowest
// failed rank's error, one that is no damage before one that is: with its code, so that whichever
// process ends first ends with the exit code of the cause, and with "rank R could not `deed`: "
// before its first 1000 bytes on the ranks that fared better.
struct Agreement {
  absl::Status verdict;
};

// Every rank calls it with how its part went. Errors: the collective's.
absl::StatusOr<Agreement> ReachAgreement(const absl::Status& mine, const char* deed,
                                         Collective& world, Stream& stream);

// The same for a caller that cannot go on either way: the verdict, or the collective's error.
absl::Status Agree(const absl::Status& mine, const char* deed, Collective& world, Stream& stream);

}  // namespace convene::worker

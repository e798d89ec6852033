// Agreement of all ranks: an error of one rank becomes the error of all, with the same words.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker_runtime/comm/collective.h"
#include "worker_runtime/device/stream.h"

namespace convene::worker {

// Whether an error of one rank means that the checkpoint is damaged for all ranks: an older one may
// be better.
bool IsDamage(const absl::Status& status);

// The common verdict: OK where every rank is OK. Otherwise it is the error of the lowest failed
// rank, where errors that are no damage go first. It has that rank's code, so that any process that
// ends first ends with the exit code of the cause; on other ranks "rank R could not `deed`: "
// stands before its first 1000 bytes.
struct Agreement {
  absl::Status verdict;
};

// Every rank calls it with the status of its part. Errors: the collective's.
absl::StatusOr<Agreement> ReachAgreement(const absl::Status& mine, const char* deed,
                                         Collective& world, Stream& stream);

// The same for a caller that cannot go on either way: the verdict, or the collective's error.
absl::Status Agree(const absl::Status& mine, const char* deed, Collective& world, Stream& stream);

}  // namespace convene::worker

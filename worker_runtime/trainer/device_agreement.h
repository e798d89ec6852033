// Checks that all ranks of a job train on the same kind of processor, before they connect.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "rendezvous/store/store_client.h"

namespace convene::worker {

// Each rank tells the others, through the job's store, whether it has a GPU to train on. OK where
// all have one, and where none has. Else FailedPrecondition on every rank, with the hosts that have
// none: without this check these ranks would open connections of one kind, and wait for others that
// open another. All ranks call it, once with a key prefix. DeadlineExceeded when a rank did not;
// the store's errors.
absl::Status AgreeOnDevices(rendezvous::StoreClient& store, const std::string& key_prefix,
                            int world_size, const std::string& host_name, bool has_gpu,
                            absl::Duration timeout);

}  // namespace convene::worker

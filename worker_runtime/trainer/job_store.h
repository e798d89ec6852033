// The store that all ranks of a job share, the keys of this attempt in it, and what the ranks
// settle by it before they connect.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "rendezvous/store/store_client.h"
#include "worker_runtime/contract/contract.h"

namespace convene::worker {

// Tries to connect for a minute. Errors: StoreClient::Connect's.
absl::StatusOr<std::unique_ptr<rendezvous::StoreClient>> OpenJobStore(const Contract& contract);

// The beginning of every key of this attempt.
std::string KeyPrefix(const Contract& contract);

// Returns once every rank has called it with this key. DeadlineExceeded, beginning with `what`,
// when a rank did not within `timeout`; the store's errors.
absl::Status WaitForAll(rendezvous::StoreClient& store, const std::string& key, int world_size,
                        absl::Duration timeout, const char* what);

// Each rank tells the others, through the job's store, whether it has a GPU to train on. OK where
// all have one, and where none has. Else FailedPrecondition on every rank, with the hosts that have
// none: without this check these ranks would open connections of one kind, and wait for others that
// open another. All ranks call it, once with a key prefix. DeadlineExceeded when a rank did not;
// the store's errors.
absl::Status AgreeOnDevices(rendezvous::StoreClient& store, const std::string& key_prefix,
                            int world_size, const std::string& host_name, bool has_gpu,
                            absl::Duration timeout);

// The least of the values of all ranks, on every rank. All ranks call it, once with a key. Errors:
// DeadlineExceeded when a rank did not within `timeout`; the store's.
absl::StatusOr<int64_t> AgreeOnLeast(rendezvous::StoreClient& store, const std::string& key,
                                     int rank, int world_size, int64_t value,
                                     absl::Duration timeout);

}  // namespace convene::worker

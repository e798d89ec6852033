// The store that all ranks of a job share, the keys of this attempt in it, and what the ranks
// settle by it before they connect.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "rendezvous/store/store_client.h"
#include "tools/base/clock.h"
#include "worker_runtime/contract/contract.h"

namespace convene::worker {

// Tries to connect for a minute. Errors: StoreClient::Connect's.
absl::StatusOr<std::unique_ptr<rendezvous::StoreClient>> OpenJobStore(const Contract& contract);

// The beginning of every key of this attempt.
std::string KeyPrefix(const Contract& contract);

// Tells the ranks in WaitForData how far this node has come with its data, as in "31.4% on node-7".
absl::Status TellOfData(rendezvous::StoreClient& store, const std::string& key_prefix,
                        const std::string& news);

struct DataWait {
  // A node may prepare its data for hours. When nothing new is heard for this long, the wait fails.
  absl::Duration silence_max = absl::Minutes(30);
  absl::Duration look_interval = absl::Seconds(30);
  Clock* clock = &Clock::Real();
  // Called after a look, when something has changed: with the number of ranks that have their data,
  // and with the latest news of TellOfData ("" without any).
  std::function<void(int64_t ready, const std::string& news)> heard;
};
// Returns once every rank has called it. DeadlineExceeded: nothing new for silence_max; the store's
// errors.
absl::Status WaitForData(rendezvous::StoreClient& store, const std::string& key_prefix,
                         int world_size, const DataWait& wait);

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

// The store that all ranks of a job share, and the keys of this attempt in it.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "rendezvous/store/store_client.h"
#include "worker_runtime/contract/contract.h"

namespace convene::worker {

// Tries to connect for a minute. Errors: StoreClient::Connect's.
absl::StatusOr<std::unique_ptr<rendezvous::StoreClient>> OpenJobStore(const Contract& contract);

// The beginning of every key of this attempt.
std::string KeyPrefix(const Contract& contract);

}  // namespace convene::worker

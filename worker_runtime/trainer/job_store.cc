#include "worker_runtime/trainer/job_store.h"

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

namespace convene::worker {
namespace {

constexpr absl::Duration kStoreTimeout = absl::Seconds(60);

}  // namespace

absl::StatusOr<std::unique_ptr<rendezvous::StoreClient>> OpenJobStore(const Contract& contract) {
  return rendezvous::StoreClient::Connect(contract.master_addr, contract.master_port,
                                          kStoreTimeout);
}

// Under torchrun there is no epoch: its restart count keeps attempts apart.
std::string KeyPrefix(const Contract& contract) {
  return absl::StrCat("convene-train/", contract.run_id, "/", contract.epoch.value(), "/",
                      contract.restart_count);
}

}  // namespace convene::worker

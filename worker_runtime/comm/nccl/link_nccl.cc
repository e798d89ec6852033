// Gives ../connect.h NCCL in a program that is linked with it.
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "rendezvous/store/store_client.h"
#include "tools/base/logging.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/comm/connect.h"
#include "worker_runtime/comm/nccl/nccl_bootstrap.h"
#include "worker_runtime/device/device.h"
#include "worker_runtime/mesh/mesh.h"

namespace convene::worker {
namespace {

absl::StatusOr<CommunicatorSet> ConnectGpus(const Layout& layout, int rank,
                                            rendezvous::StoreClient& store,
                                            const std::string& key_prefix,
                                            const ConnectOptions& options, Device& device) {
  const std::string host_name = HostName();
  CONVENE_ASSIGN_OR_RETURN(const int gpus,
                           CountGpusInUse(store, key_prefix, host_name, layout.world_size(),
                                          options.bootstrap.connect_timeout));
  const NcclBootstrapOptions nccl = {
      .base = options.bootstrap,
      .place = {.host_name = host_name,
                .local_rank = options.local_rank,
                .local_world_size = options.local_world_size,
                .world_size = layout.world_size(),
                .gpus = gpus},
      .open_store = [host = options.bootstrap.store_host,
                     port = options.store_port](absl::Duration timeout) {
        return rendezvous::StoreClient::Connect(host, port, timeout);
      }};
  return BootstrapNccl(layout, rank, store, key_prefix, nccl, device);
}

[[maybe_unused]] const bool is_linked = [] {
  linked_gpu_connections = {.connect = ConnectGpus, .memory = MakeNcclMemory};
  return true;
}();

}  // namespace
}  // namespace convene::worker

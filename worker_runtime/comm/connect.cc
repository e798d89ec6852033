#include "worker_runtime/comm/connect.h"

#include "absl/status/status.h"
#include "absl/time/time.h"
#ifdef CONVENE_NCCL
#include "tools/base/logging.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/comm/nccl/environment.h"
#include "worker_runtime/comm/nccl/nccl_bootstrap.h"
#endif

namespace convene::worker {

absl::StatusOr<CommunicatorSet> ConnectRanks(const Layout& layout, int rank,
                                             rendezvous::StoreClient& store,
                                             const std::string& key_prefix,
                                             const ConnectOptions& options, Device& device) {
  if (device.kind() == DeviceKind::kCpu) {
    return BootstrapGloo(layout, rank, store, key_prefix, options.bootstrap);
  }
#ifdef CONVENE_NCCL
  const std::string host_name = HostName();
  CONVENE_ASSIGN_OR_RETURN(const int gpus,
                           CountGpusInUse(store, key_prefix, host_name, layout.world_size(),
                                          options.bootstrap.connect_timeout));
  const NcclBootstrapOptions nccl = {
      .base = options.bootstrap,
      .environment = NcclEnvironment({.host_name = host_name,
                                      .local_rank = options.local_rank,
                                      .local_world_size = options.local_world_size,
                                      .world_size = layout.world_size(),
                                      .gpus = gpus}),
      .open_store = [host = options.bootstrap.store_host,
                     port = options.store_port](absl::Duration timeout) {
        return rendezvous::StoreClient::Connect(host, port, timeout);
      }};
  return BootstrapNccl(layout, rank, store, key_prefix, nccl, device);
#else
  return absl::UnimplementedError("this program was built without NCCL: one rank alone has a GPU");
#endif
}

std::unique_ptr<Memory> CollectiveMemory(const CommunicatorSet& communicators,
                                         const Device& device) {
  if (device.kind() == DeviceKind::kCpu) return nullptr;
#ifdef CONVENE_NCCL
  return MakeNcclMemory(communicators);
#else
  (void)communicators;
  return nullptr;
#endif
}

}  // namespace convene::worker

#include "worker_runtime/comm/connect.h"

#include "absl/status/status.h"

namespace convene::worker {

absl::StatusOr<CommunicatorSet> ConnectRanks(const Layout& layout, int rank,
                                             rendezvous::StoreClient& store,
                                             const std::string& key_prefix,
                                             const ConnectOptions& options, Device& device) {
  if (device.kind() == DeviceKind::kCpu) {
    return BootstrapGloo(layout, rank, store, key_prefix, options.bootstrap);
  }
  if (linked_gpu_connections.connect == nullptr) {
    return absl::UnimplementedError(
        "this program was built without NCCL: one rank alone has a GPU");
  }
  return linked_gpu_connections.connect(layout, rank, store, key_prefix, options, device);
}

std::unique_ptr<Memory> CollectiveMemory(const CommunicatorSet& communicators,
                                         const Device& device) {
  if (device.kind() == DeviceKind::kCpu || linked_gpu_connections.memory == nullptr) return nullptr;
  return linked_gpu_connections.memory(communicators);
}

}  // namespace convene::worker

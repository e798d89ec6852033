// For the emulated GPU (worker_runtime/device/emulated), which has no NCCL: a world of one.
#include "absl/status/status.h"
#include "worker_runtime/comm/connect.h"

namespace convene::worker {

absl::StatusOr<CommunicatorSet> ConnectRanks(const Layout& layout, int rank,
                                             rendezvous::StoreClient& store,
                                             const std::string& key_prefix,
                                             const ConnectOptions& options, Device& device) {
  if (device.kind() == DeviceKind::kCuda && layout.world_size() > 1) {
    return absl::UnimplementedError("the emulated GPU has no NCCL: it trains on one rank alone");
  }
  return BootstrapGloo(layout, rank, store, key_prefix, options.bootstrap);
}

std::unique_ptr<Memory> CollectiveMemory(const CommunicatorSet& /*communicators*/,
                                         const Device& /*device*/) {
  return nullptr;
}

}  // namespace convene::worker

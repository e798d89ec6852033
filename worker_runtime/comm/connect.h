// From a rank, a store and a device to a full set of communicators: over NCCL between GPUs, over
// Gloo between CPUs.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "worker_runtime/comm/bootstrap.h"
#include "worker_runtime/device/device.h"
#include "worker_runtime/mesh/mesh.h"

namespace convene::worker {

struct ConnectOptions {
  BootstrapOptions bootstrap;
  int store_port = 0;  // where NCCL's watchdog asks for the other ranks' words
  // This process's number among the job's processes on this machine: several may share a GPU.
  int local_rank = 0;
  int local_world_size = 1;
};

// All ranks call it at about the same time; `device` outlives the set. Errors: BootstrapGloo's or
// BootstrapNccl's (nccl/nccl_bootstrap.h); Unimplemented for a GPU in a program without
// nccl/link_nccl.cc.
absl::StatusOr<CommunicatorSet> ConnectRanks(const Layout& layout, int rank,
                                             rendezvous::StoreClient& store,
                                             const std::string& key_prefix,
                                             const ConnectOptions& options, Device& device);

// Memory of `device`, current in the calling thread, for the buffers of these communicators, which
// live until its last block is allocated; all ranks allocate the same blocks. Null when the
// device's own memory is as good: on a CPU, and in a world of one.
std::unique_ptr<Memory> CollectiveMemory(const CommunicatorSet& communicators,
                                         const Device& device);

// Both functions for GPUs: nccl/link_nccl.cc sets them before main() in a program that is linked
// with it; null in any other program.
struct GpuConnections {
  decltype(ConnectRanks)* connect = nullptr;
  std::unique_ptr<Memory> (*memory)(const CommunicatorSet& communicators) = nullptr;
};
inline constinit GpuConnections linked_gpu_connections;

}  // namespace convene::worker

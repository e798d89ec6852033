// Device memory that NCCL reads and writes in place, without copies through its own buffers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>

#include "absl/status/statusor.h"
#include "worker_runtime/comm/bootstrap.h"
#include "worker_runtime/device/device.h"

namespace convene::worker {

class NcclSession;

// For blocks that collectives work on: parameters, gradients, activations. Each block comes from
// ncclMemAlloc, of the current device, and is registered with every NCCL communicator of the set
// (none in a world of one: plain device memory then). All ranks should do the same.
//
// One thread. May outlive the set: what a session registered ends with it.
class NcclMemory final : public Memory {
 public:
  explicit NcclMemory(const CommunicatorSet& set);

  absl::StatusOr<void*> Allocate(size_t bytes) override;
  void Free(void* data, size_t bytes) override;

 private:
  const std::weak_ptr<NcclSession> session_;
  std::map<void*, uint64_t> registrations_;
};

}  // namespace convene::worker

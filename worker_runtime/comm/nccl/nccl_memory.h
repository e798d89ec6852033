// Device memory that NCCL reads and writes in place, without copies through its own buffers.
#pragma once

#include <cstddef>
#include <memory>
#include <set>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker_runtime/comm/collective.h"
#include "worker_runtime/device/device.h"

namespace convene::worker {

class NcclSession;

// Blocks come from ncclMemAlloc, of the current device (rounded up to its granularity, 2 MiB or
// more: few and large ones), and are registered with every communicator of the session that takes
// memory (NcclCommunicatorTraits), or with none: by ncclCommWindowRegister where all ranks of the
// communicator have equal memory and NCCL is kOldestNcclWithWindows or newer, by ncclCommRegister
// elsewhere.
//
// All ranks allocate the same blocks in the same order: NCCL does not define the case that one rank
// passes a registered buffer and another rank an unregistered one, so each Allocate asks over
// `host` whether all ranks could register theirs. If one could not, none does: that rank logs one
// warning with the reason, and the training is right, but slower. A rank that ncclMemAlloc gives no
// block (no access to the driver's handles in a container, say) takes a plain one from cudaMalloc,
// and then none is registered either. NCCL_LOCAL_REGISTER=0 turns registration off, on one node as
// good as on all; NCCL_CUMEM_ENABLE=0 makes the blocks plain cudaMalloc's.
//
// NVLink SHARP wants a buffer at one offset of its block on all ranks, as the ranks of a tp or dp
// group have it. Where offsets differ (embedding, world) NCCL notices that and goes the ordinary
// way. Through a symmetric window a rank reads another rank's data at its own offset, and NCCL
// notices nothing: only groups of ranks of one stage have one. The emulated NCCL checks the offsets
// of each operation.
//
// The end. No work may run on a block that is given back, so the order is:
// - All went well: the block is deregistered and goes first. NCCL's communicators end later.
// - An error: the communicators (training.cc), by abort when anything still runs. They give up what
//   is registered themselves, once the kernels have left; to deregister before would take the
//   mapping from under a kernel that still waits for its peers. Then the block; NCCL is not asked.
//
// One thread.
class NcclMemory final : public Memory {
 public:
  // `host`: between all ranks that allocate; used by Allocate alone.
  NcclMemory(std::weak_ptr<NcclSession> session, Collective& host);

  // Errors: ResourceExhausted; the errors of `host`. REQUIRES: the session lives.
  absl::StatusOr<void*> Allocate(size_t bytes) override;
  void Free(void* data, size_t bytes) override;

 private:
  // `from_nccl`: an error where the block is not NCCL's.
  absl::Status RegisterEverywhere(void* data, size_t bytes, const absl::Status& from_nccl);
  // Whether no rank has an error. Logs this rank's.
  absl::StatusOr<bool> AgreeOn(const absl::Status& own);
  void GiveBack(void* data);

  const std::weak_ptr<NcclSession> session_;
  Collective& host_;
  std::set<void*> plain_;  // the blocks that are cudaMalloc's
};

}  // namespace convene::worker

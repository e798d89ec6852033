// From a rank, a store and a GPU to a full set of communicators.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "rendezvous/store/store_client.h"
#include "worker_runtime/comm/bootstrap.h"
#include "worker_runtime/comm/nccl/environment.h"
#include "worker_runtime/comm/nccl/peers.h"
#include "worker_runtime/device/device.h"
#include "worker_runtime/mesh/mesh.h"

namespace convene::worker {

struct NcclBootstrapOptions {
  BootstrapOptions base;
  // This rank's. NcclEnvironment's variables are set before NCCL's first call, where the user has
  // not set them.
  NcclPlace place;
  // Opens a client of the job's store for the watchdog's own thread when an operation fails (a
  // StoreClient serves one thread). Null: errors do not tell what the other ranks did.
  OpenStore open_store;
};

// The number of different GPUs that the ranks on the machine `host_name` use: NcclPlace::gpus. CUDA
// cannot tell one process this number, where each process is shown a GPU of its own
// (CUDA_VISIBLE_DEVICES). All ranks call it, each with its GPU current. Errors: the store's.
absl::StatusOr<int> CountGpusInUse(rendezvous::StoreClient& store, const std::string& key_prefix,
                                   const std::string& host_name, int world_size,
                                   absl::Duration timeout);

// Like BootstrapGloo, for a job whose every rank has a GPU: `host` and `checkpoint` work over Gloo,
// all others over NCCL (or alone, where the group is this rank). `device` is this rank's, current
// in the calling thread, and outlives the set.
//
// All of a rank's communicators are created here, in the one order of kCommunicatorMembers, pp with
// the lanes of options.base.pp_links (kNcclLinksMax to a rank at most), and run
// their first operation here, so that no later one waits for connections; then the watchdog starts.
// One key of the store a communicator, written by the first rank of its group. Logs one line about
// the transports (rank 0), and one warning when they are slow ones, or when ranks share a GPU.
//
// Memory is registered with all of them; but where NCCL is older than
// kOldestNcclThatRegistersForNetworks (limits.h), only with those whose ranks are on one machine.
//
// Consequence of one session (session.h): a rank's NCCL communicators fail together; destroying the
// set ends them, which all ranks should do at about the same time.
//
// Errors: BootstrapGloo's; FailedPrecondition when the NCCL library is too old or `device` no GPU;
// DeadlineExceeded when a rank did not come in time (NcclConnectTimeout, limits.h); NCCL's own,
// with its words. Where NCCL's log is kept (debug_log.h), both have its interface and last
// warnings.
absl::StatusOr<CommunicatorSet> BootstrapNccl(const Layout& layout, int rank,
                                              rendezvous::StoreClient& store,
                                              const std::string& key_prefix,
                                              const NcclBootstrapOptions& options, Device& device);

// Memory of the current device that NCCL works on in place (nccl_memory.h), for the communicators
// of this set, which lives until the last block is allocated. All ranks do the same. Null when none
// of them is NCCL's.
std::unique_ptr<Memory> MakeNcclMemory(const CommunicatorSet& set);

}  // namespace convene::worker

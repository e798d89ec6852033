// PURE. The device memory that NCCL takes for its own buffers: an estimate. NCCL allocates it
// beside the trainer's memory, and has no call that tells its size.
#pragma once

#include <cstddef>
#include <vector>

#include "worker_runtime/mesh/mesh.h"

namespace convene::worker {

// A connection of one channel between two ranks takes this on each rank that both sends and
// receives by it. The receiver keeps a buffer for each of NCCL's protocols: 4 MiB (Simple),
// 4,915,200 bytes (LL128) and 512 KiB (LL), which its allocator rounds up to 10 MiB; the sender
// keeps one granule of 2 MiB. NVIDIA/nccl #1685 lists these allocations of NCCL on 8 H100.
inline constexpr size_t kNcclConnectionBytes = size_t{12} << 20;

// The communicators of a rank that are made alike.
struct NcclGroup {
  int communicators = 0;
  int ranks = 0;             // of each
  int ring_channels = 0;     // of its collectives, at most; 0: it carries messages alone
  int peers = 0;             // ranks of the same machine to which messages go
  int message_channels = 0;  // to each of them, at most
};

// The groups of two ranks and more, as BootstrapNccl makes them on a GPU of 128 multiprocessors or
// more. Of a smaller GPU the channels are fewer. A pipeline rank counts as one amid the pipeline,
// and as one at its ends too.
std::vector<NcclGroup> NcclGroupsOf(const Layout& layout);

// Bytes on one GPU: in each communicator a ring, and a connection to each peer. A machine is taken
// to have eight GPUs, and messages that leave it to share what the ring has. Where NCCL also builds
// trees or NVLS, it takes more. 0: the rank is alone.
size_t NcclBufferBytes(const Layout& layout);

}  // namespace convene::worker

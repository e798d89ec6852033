// PURE. Which versions of NCCL will do, and how many blocks its kernels may have.
#pragma once

#include <string>

namespace convene::worker {

// Non-blocking communicators and registered memory: 2.19. By the version of the library that runs,
// not of the header: a user's libnccl may be older or newer.
inline constexpr int kOldestNcclVersion = 21900;

// `version_code` as ncclGetVersion gives it: "2.28.9" for 22809.
std::string NcclVersionText(int version_code);

// Kernels of a rank's communicators that can wait for their peers at the same time: of a collective
// in compute() or in layer_communication(), which never hold one both, of one in communication(),
// and of a message up and one down.
inline constexpr int kNcclKernelsAtOnce = 4;

// The blocks that each of these kernels may have, on a GPU of so many multiprocessors: so few that
// all of them find a multiprocessor beside each other.
int NcclBlocksMax(int multiprocessors);

}  // namespace convene::worker

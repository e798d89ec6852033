// PURE. The features that a version of NCCL has.
#pragma once

#include <string>

namespace convene::worker {

// By the version of the library that runs, not of the header: a user's libnccl may be older or
// newer. First versions as in NCCL's release tags, of `revoke` as in the library itself.
struct NcclFeatures {
  int version_code = 0;
  // All that we cannot do without: non-blocking communicators, registered memory. 2.19.
  bool usable = false;
  // ncclAlltoAll. 2.28.
  bool all_to_all = false;
  // ncclCommRevoke: stops what runs and keeps the communicator's resources. 2.28.9.
  bool revoke = false;
  // ncclCommShrink: a communicator without its lost ranks, made by those that are left. 2.27.
  bool shrink = false;
  // ncclCommGrow: a communicator with new ranks at its end. 2.29.
  bool grow = false;
  // Abort and new communicators within one process: the base way, everywhere but in 2.28.3 to
  // 2.28.8 (NVIDIA's resiliency extension warns of those). There a rank restarts as a new process.
  bool restart_in_process = false;
};

// `version_code` as ncclGetVersion gives it: 22809 for 2.28.9.
NcclFeatures NcclFeaturesOf(int version_code);

// Kernels of a rank's communicators that can wait for their peers at the same time: of a collective
// in compute() or in layer_communication(), which never hold one both, of one in communication(),
// and of a message up and one down.
inline constexpr int kNcclKernelsAtOnce = 4;

// The blocks that each of these kernels may have, on a GPU of so many multiprocessors: so few that
// all of them find a multiprocessor beside each other.
int NcclBlocksMax(int multiprocessors);

// "2.28.9".
std::string NcclVersionText(int version_code);

}  // namespace convene::worker

// PURE. The settings of NCCL with which several ranks may share one GPU, and the warning of it.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace convene::worker {

struct NcclPlace {
  std::string host_name;     // of this machine
  int local_rank = 0;        // of this process, among those of the job on this machine
  int local_world_size = 1;  // of the job on this machine
  int world_size = 1;
  int gpus = 1;  // of this machine, that its ranks of the job have among them
};

// The variables to set before NCCL's first call, none where every rank has a GPU of its own.
//
// For tests: NCCL refuses two ranks of one host on one GPU ("Duplicate GPU detected"), but takes
// each NCCL_HOSTID for a host (src/misc/utils.cc, getHostHash; one per process). So every rank
// becomes a host of its own, and all traffic goes over sockets: right results, by the real library,
// slowly. The ranks' kernels take turns on the GPU.
std::vector<std::pair<std::string, std::string>> NcclEnvironment(const NcclPlace& place);

// The warning where ranks of this machine share a GPU, as a person rarely means it: what it costs,
// and what to look at. "" where none does.
std::string SharingWarning(const NcclPlace& place);

}  // namespace convene::worker

#include "worker_runtime/comm/nccl/environment.h"

#include "absl/strings/str_cat.h"

namespace convene::worker {

std::vector<std::pair<std::string, std::string>> NcclEnvironment(const NcclPlace& place) {
  if (place.local_world_size <= place.gpus) return {};
  std::vector<std::pair<std::string, std::string>> variables = {
      {"NCCL_HOSTID", absl::StrCat(place.host_name, "-rank-", place.local_rank)},
      // Hosts of one NVLink domain would share memory after all.
      {"NCCL_MNNVL_ENABLE", "0"},
  };
  // NCCL leaves the loopback interface out unless asked. It reaches no other machine.
  if (place.local_world_size == place.world_size) {
    variables.emplace_back("NCCL_SOCKET_IFNAME", "lo");
    variables.emplace_back("NCCL_NET", "Socket");
  }
  return variables;
}

std::string SharingWarning(const NcclPlace& place) {
  if (place.local_world_size <= place.gpus) return "";
  return absl::StrCat(
      place.local_world_size, " ranks share ", place.gpus, place.gpus == 1 ? " GPU" : " GPUs",
      " of ", place.host_name,
      ": they divide its memory and its time, and all their traffic goes over sockets or a "
      "network, "
      "none over NVLink. Start as many ranks as a node has GPUs (--nproc-per-node gpu), or see why "
      "there are no more (CUDA_VISIBLE_DEVICES, nvidia-smi)");
}

}  // namespace convene::worker

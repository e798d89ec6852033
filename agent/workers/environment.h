// PURE. The environment of a worker: torchrun's variables (PyTorch 2.15, local_elastic_agent.py) to
// the letter, and CONVENE_*.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "rendezvous/quorum/messages.h"
#include "tools/base/strong_int.h"

namespace convene::agent {

struct WorkerPlace {
  rendezvous::Assignment assignment;
  Epoch epoch;
  int local_rank = 0;
  int local_world_size = 1;
  std::string run_id;
  std::string role;
  std::string session_path;         // "" = no session
  std::string progress_path;        // "" = nobody watches
  std::string memory_path;          // "" = none
  std::string topology;             // "" = none
  int max_nodes = 1;                // that the job may have
  std::string error_file;           // "" = none
  std::string timer_file;           // "" = as inherited
  bool shares_agent_store = true;   // false: rank 0's worker serves the store itself
  std::string agent_token;          // "" = none
  bool virtual_local_rank = false;  // LOCAL_RANK is 0
  int usable_cpus = 1;              // the node's, for all workers together
  bool terminal = false;            // the agent's stdout is one
};

// `table`, then the worker's place, which nothing overrides. Sorted "NAME=value" strings.
// OMP_NUM_THREADS becomes 1 when `table` does not set it and the node runs several workers: then
// CONVENE_HOST_THREADS tells each worker's share of the CPUs.
// TORCH_NCCL_ASYNC_ERROR_HANDLING becomes 1 when `table` does not set it.
std::vector<std::string> WorkerEnvironment(std::map<std::string, std::string> table,
                                           const WorkerPlace& place);

// Takes out what an outer agent told its worker, or a cluster its pod: rank and place, and the ties
// to an agent. MASTER_ADDR and MASTER_PORT stay.
void LeaveNoRank(std::map<std::string, std::string>& environment);

// Lets a worker with this environment see only its own device: --virtual-local-rank, by torchrun's
// rules (PyTorch 2.15, local_elastic_agent.py, _set_local_rank_env). That is the entry of
// CUDA_VISIBLE_DEVICES (on ROCm HIP_VISIBLE_DEVICES, then both are set) at its local rank, as it
// stands there, be it a number or a UUID; without a list the local rank itself. InvalidArgument:
// the list is too short.
absl::Status LeaveOneDevice(std::map<std::string, std::string>& environment, int local_rank);

// Sorted "NAME=value" strings.
std::vector<std::string> EnvironmentStrings(const std::map<std::string, std::string>& table);

// "NAME=value" strings as a map; strings without '=' are left out, the first of two with one name
// counts (as for getenv), and `table` before all of them.
std::map<std::string, std::string> ParseEnvironment(const char* const* strings,
                                                    std::map<std::string, std::string> table = {});

}  // namespace convene::agent

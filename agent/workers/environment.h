// PURE. The environment of a worker: torchrun's (shared/reference/torchrun.md, section 2.3), to the
// letter, and CONVENE_*.
#pragma once

#include <map>
#include <string>
#include <vector>

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
  std::string session_path;                    // "" = no session
  std::string progress_path;                   // "" = nobody watches
  std::string error_file;                      // "" = none
  std::string timer_file;                      // "" = as inherited
  bool shares_agent_store = true;              // false: rank 0's worker serves the store itself
  std::string agent_token;                     // "" = none
  bool virtual_local_rank = false;             // LOCAL_RANK is 0
  std::map<std::string, std::string> devices;  // OneVisibleDevice's
  bool terminal = false;                       // the agent's stdout is one
};

// The agent's own environment, then `extra`, then the worker's place, which nothing overrides.
// Sorted "NAME=value" strings. OMP_NUM_THREADS becomes 1 when neither sets it and the node runs
// several workers; TORCH_NCCL_ASYNC_ERROR_HANDLING becomes 1 when neither sets it.
std::vector<std::string> WorkerEnvironment(const std::map<std::string, std::string>& inherited,
                                           const std::map<std::string, std::string>& extra,
                                           const WorkerPlace& place);

// `inherited`, overridden by `extra`.
std::map<std::string, std::string> MergedEnvironment(
    const std::map<std::string, std::string>& inherited,
    const std::map<std::string, std::string>& extra);

// Sorted "NAME=value" strings.
std::vector<std::string> EnvironmentStrings(const std::map<std::string, std::string>& table);

// "NAME=value" strings as a map; strings without '=' are left out, the first of two with one name
// counts (as for getenv).
std::map<std::string, std::string> ParseEnvironment(const char* const* strings);

}  // namespace convene::agent

#include "agent/workers/environment.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "worker_runtime/contract/names.h"

namespace convene::agent {

void LeaveNoRank(std::map<std::string, std::string>& environment) {
  for (const char* const name :
       {contract::kRank, contract::kLocalRank, contract::kNodeLocalRank, contract::kGroupRank,
        contract::kRoleRank, contract::kWorldSize, contract::kLocalWorldSize,
        contract::kGroupWorldSize, contract::kRoleWorldSize, contract::kSession,
        contract::kProgress, contract::kMemory, contract::kTerminal, contract::kHostThreads}) {
    environment.erase(name);
  }
}

std::vector<std::string> WorkerEnvironment(std::map<std::string, std::string> table,
                                           const WorkerPlace& place) {
  LeaveNoRank(table);
  if (place.local_world_size > 1 && table.try_emplace(contract::kOmpNumThreads, "1").second) {
    table[contract::kHostThreads] =
        absl::StrCat(std::max(1, place.usable_cpus / place.local_world_size));
  }
  table.try_emplace(contract::kNcclAsyncErrorHandling, "1");

  const rendezvous::Assignment& assignment = place.assignment;
  table[contract::kRank] = absl::StrCat(assignment.first_global_rank + place.local_rank);
  table[contract::kLocalRank] = absl::StrCat(place.virtual_local_rank ? 0 : place.local_rank);
  table[contract::kGroupRank] = absl::StrCat(assignment.group_rank);
  table[contract::kRoleRank] = absl::StrCat(assignment.first_role_rank + place.local_rank);
  table[contract::kRoleName] = place.role;
  table[contract::kWorldSize] = absl::StrCat(assignment.world_size);
  table[contract::kLocalWorldSize] = absl::StrCat(place.local_world_size);
  table[contract::kMaxNodes] = absl::StrCat(place.max_nodes);
  table[contract::kGroupWorldSize] = absl::StrCat(assignment.group_world_size);
  table[contract::kRoleWorldSize] = absl::StrCat(assignment.role_world_size);
  table[contract::kMasterAddr] = assignment.store_host;
  table[contract::kMasterPort] = absl::StrCat(assignment.store_port);
  table[contract::kRestartCount] = absl::StrCat(assignment.restart_count);
  table[contract::kMaxRestarts] = absl::StrCat(assignment.max_restarts);
  table[contract::kRunId] = place.run_id;
  // "True": the agent of group rank 0 serves the store, and every rank, 0 too, is a client of it.
  table[contract::kUseAgentStore] = place.shares_agent_store ? "True" : "False";
  if (!place.timer_file.empty()) table[contract::kTimerFile] = place.timer_file;
  table[contract::kErrorFile] = place.error_file;
  table[contract::kEpoch] = absl::StrCat(place.epoch.value());
  table[contract::kAttempt] = absl::StrCat(assignment.attempt);
  table.erase(contract::kTopology);  // an outer agent's
  if (place.virtual_local_rank) {
    table[contract::kNodeLocalRank] = absl::StrCat(place.local_rank);
  }
  if (!place.progress_path.empty()) table[contract::kProgress] = place.progress_path;
  if (!place.memory_path.empty()) table[contract::kMemory] = place.memory_path;
  if (!place.topology.empty()) table[contract::kTopology] = place.topology;
  if (!place.session_path.empty()) table[contract::kSession] = place.session_path;
  if (!place.agent_token.empty()) table[contract::kAgentToken] = place.agent_token;
  if (place.terminal) table[contract::kTerminal] = "1";

  return EnvironmentStrings(table);
}

absl::Status LeaveOneDevice(std::map<std::string, std::string>& environment, int local_rank) {
  const auto hip = environment.find(contract::kHipVisibleDevices);
  const bool is_hip = hip != environment.end() && !hip->second.empty();
  const auto list = is_hip ? hip : environment.find(contract::kCudaVisibleDevices);
  std::string device = absl::StrCat(local_rank);
  if (list != environment.end()) {
    const std::vector<std::string> devices = absl::StrSplit(list->second, ',');
    if (local_rank >= static_cast<int>(devices.size())) {
      return absl::InvalidArgumentError(
          absl::StrCat("--virtual-local-rank: ", list->first, "=", list->second,
                       " has no device for local rank ", local_rank,
                       "; lower --nproc-per-node or name more devices"));
    }
    device = std::string(absl::StripAsciiWhitespace(devices[local_rank]));
  }
  environment[contract::kCudaVisibleDevices] = device;
  if (is_hip) environment[contract::kHipVisibleDevices] = device;
  return absl::OkStatus();
}

std::vector<std::string> EnvironmentStrings(const std::map<std::string, std::string>& table) {
  std::vector<std::string> strings;
  strings.reserve(table.size());
  for (const auto& [name, value] : table) strings.push_back(absl::StrCat(name, "=", value));
  return strings;
}

std::map<std::string, std::string> ParseEnvironment(const char* const* strings,
                                                    std::map<std::string, std::string> table) {
  for (; *strings != nullptr; ++strings) {
    const char* equals = std::strchr(*strings, '=');
    if (equals == nullptr || equals == *strings) continue;
    table.try_emplace(std::string(*strings, equals - *strings), equals + 1);
  }
  return table;
}

}  // namespace convene::agent

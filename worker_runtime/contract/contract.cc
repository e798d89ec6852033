#include "worker_runtime/contract/contract.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/contract/names.h"

namespace convene::worker {
namespace {

absl::StatusOr<int> ReadInt(const EnvironmentLookup& lookup, const char* name, int minimum,
                            int limit, std::optional<int> fallback) {
  const std::optional<std::string> text = lookup(name);
  if (!text.has_value()) {
    if (fallback.has_value()) return *fallback;
    return absl::InvalidArgumentError(
        absl::StrCat(name, " is not set although ", contract::kWorldSize,
                     " is; start workers with `convene run` or torchrun, or unset both"));
  }
  int value = 0;
  if (!absl::SimpleAtoi(*text, &value) || value < minimum || value >= limit) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, "=", *text, " must be a number from ", minimum, " to ", limit - 1));
  }
  return value;
}

}  // namespace

absl::StatusOr<Contract> ReadContract(const EnvironmentLookup& lookup) {
  Contract result;
  if (!lookup(contract::kWorldSize).has_value() && !lookup(contract::kRank).has_value()) {
    return result;
  }
  constexpr int kMany = 1 << 24;
  CONVENE_ASSIGN_OR_RETURN(result.world_size,
                           ReadInt(lookup, contract::kWorldSize, 1, kMany, std::nullopt));
  CONVENE_ASSIGN_OR_RETURN(result.rank,
                           ReadInt(lookup, contract::kRank, 0, result.world_size, std::nullopt));
  CONVENE_ASSIGN_OR_RETURN(result.local_world_size,
                           ReadInt(lookup, contract::kLocalWorldSize, 1, result.world_size + 1, 1));
  const char* const local_rank = lookup(contract::kNodeLocalRank).has_value()
                                     ? contract::kNodeLocalRank
                                     : contract::kLocalRank;
  CONVENE_ASSIGN_OR_RETURN(result.local_rank,
                           ReadInt(lookup, local_rank, 0, result.local_world_size, std::nullopt));
  CONVENE_ASSIGN_OR_RETURN(result.group_rank,
                           ReadInt(lookup, contract::kGroupRank, 0, result.world_size, 0));
  CONVENE_ASSIGN_OR_RETURN(result.restart_count,
                           ReadInt(lookup, contract::kRestartCount, 0, kMany, 0));
  if (result.world_size > 1) {
    if (lookup(contract::kUseAgentStore).value_or("True") != "True") {
      return absl::InvalidArgumentError(absl::StrCat(
          contract::kUseAgentStore, " is not True: nobody serves the job's store for its workers; ",
          "leave TORCH_DISABLE_SHARE_RDZV_TCP_STORE unset"));
    }
    result.master_addr = lookup(contract::kMasterAddr).value_or("");
    if (result.master_addr.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat(contract::kMasterAddr, " is not set although ", contract::kWorldSize, " is ",
                       result.world_size, "; it names the host of the job's store"));
    }
    CONVENE_ASSIGN_OR_RETURN(result.master_port,
                             ReadInt(lookup, contract::kMasterPort, 1, 65536, std::nullopt));
  }
  CONVENE_ASSIGN_OR_RETURN(const int epoch, ReadInt(lookup, contract::kEpoch, 0, 1 << 30, 0));
  result.epoch = Epoch(epoch);
  // An agent from before an upgrade tells the epoch alone.
  CONVENE_ASSIGN_OR_RETURN(result.attempt,
                           ReadInt(lookup, contract::kAttempt, 0, 1 << 30, std::max(0, epoch - 1)));
  CONVENE_ASSIGN_OR_RETURN(result.max_nodes, ReadInt(lookup, contract::kMaxNodes, 1, kMany, 0));
  CONVENE_ASSIGN_OR_RETURN(result.host_threads,
                           ReadInt(lookup, contract::kHostThreads, 1, kMany, 0));
  result.run_id = lookup(contract::kRunId).value_or("none");
  result.session_path = lookup(contract::kSession).value_or("");
  result.progress_path = lookup(contract::kProgress).value_or("");
  result.memory_path = lookup(contract::kMemory).value_or("");
  result.topology = lookup(contract::kTopology).value_or("");
  result.terminal = lookup(contract::kTerminal).value_or("") == "1";
  return result;
}

absl::Status CheckOneTask(const EnvironmentLookup& lookup) {
  if (lookup(contract::kRank).has_value()) return absl::OkStatus();
  for (const char* const name : {"SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE"}) {
    int tasks = 0;
    if (!absl::SimpleAtoi(lookup(name).value_or(""), &tasks) || tasks < 2) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(name, " is ", tasks, ", but ", contract::kRank,
                     " is not set: each of these tasks would train for itself. Write `srun convene "
                     "run convene-train ...` (or mpirun) for one job of all, or `",
                     contract::kRank, "=0 ", contract::kWorldSize, "=1 ", contract::kLocalRank,
                     "=0 convene-train ...` for a job of its own in each"));
  }
  return absl::OkStatus();
}

}  // namespace convene::worker

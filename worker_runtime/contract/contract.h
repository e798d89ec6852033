// The worker contract: the environment, read once.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "tools/base/environment.h"
#include "tools/base/strong_int.h"

namespace convene::worker {

struct Contract {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;  // among this node's workers, also where LOCAL_RANK is 0 for all
  int local_world_size = 1;
  int group_rank = 0;
  std::string master_addr;  // "" when world_size is 1 and none was given
  int master_port = 0;
  int restart_count = 0;
  std::string run_id;
  Epoch epoch;  // 0 under torchrun
  // The epochs that this run of the job began before; 0 under torchrun. A later run of the same id
  // begins with 0 again, while its epochs go on from the earlier run's.
  int attempt = 0;
  std::string session_path;   // "" when there is no agent of ours
  std::string progress_path;  // "" when nobody watches
  std::string memory_path;    // "" when nobody holds memory for this node's workers
  std::string topology;       // the node's label; "" without one
  int max_nodes = 0;          // that the job may have; 0: not known
  int host_threads = 0;       // of Device::host(); 0: as OMP_NUM_THREADS says
  bool terminal = false;      // progress lines may be redrawn in place

  // The job ran before this process. torchrun counts its failures alone.
  bool is_restart() const { return attempt > 0 || restart_count > 0; }
};

// With no variable set at all: a single process (rank 0 of 1). InvalidArgument when a variable is
// missing, no number or out of range (RANK >= WORLD_SIZE, ...); the text names it, its value and
// the legal values.
absl::StatusOr<Contract> ReadContract(const EnvironmentLookup& lookup);

// InvalidArgument where this process is one of several tasks of Slurm or mpirun, and no launcher
// made ranks of them: each would be a whole job of its own.
absl::Status CheckOneTask(const EnvironmentLookup& lookup);

}  // namespace convene::worker

// `convene bench`: becomes a rank of a bench, or starts its ranks.
#pragma once

#include "launcher/command_table.h"

namespace convene::launcher {

// Where RANK is set this process becomes the rank (`convene-train bench`). Where a scheduler
// started it (srun, mpirun, a Kubernetes Job) it runs its node's part of a job of ranks. Else it
// runs ranks on this machine alone.
Command BenchRow();

}  // namespace convene::launcher

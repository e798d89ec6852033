// `convene generate` and `convene evaluate`: read the flags, and become the trainer's program,
// which has the numeric libraries; or run it as the workers of a job on this machine, where the
// flags ask for several processes.
#pragma once

#include "launcher/command_table.h"

namespace convene::launcher {

// Their rows. The actions return where the program cannot be started, NotFound; and with the exit
// code of the job.
Command GenerateRow();
Command EvaluateRow();

}  // namespace convene::launcher

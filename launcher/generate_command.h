// `convene generate` and `convene evaluate`: read the flags, and become the trainer's program,
// which has the numeric libraries.
#pragma once

#include "launcher/command_table.h"

namespace convene::launcher {

// Their rows. The actions return where the program cannot be started: NotFound.
Command GenerateRow();
Command EvaluateRow();

}  // namespace convene::launcher

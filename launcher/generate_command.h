// `convene generate`: reads the flags, and becomes the trainer's program, which has the numeric
// libraries.
#pragma once

#include "launcher/command_table.h"

namespace convene::launcher {

// The row of `convene generate`. Its action returns where the program cannot be started: NotFound.
Command GenerateRow();

}  // namespace convene::launcher

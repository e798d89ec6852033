// `convene checkpoint`: looks at checkpoints, and carries weights between them and other programs.
#pragma once

#include "launcher/command_table.h"

namespace convene::launcher {

// The row of `convene`'s table, with a table of its own behind it.
Command CheckpointRow();

}  // namespace convene::launcher

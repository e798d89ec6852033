// `convene read-token`: the password by which people and programs look at a daemon's pages.
#pragma once

#include "launcher/command_table.h"

namespace convene::launcher {

// Prints the ReadToken (rendezvous/lock/token.h) of the join token.
Command ReadTokenRow();

}  // namespace convene::launcher

// PURE. Agents and the daemon read the kernel's log lines alike.
#pragma once

#include "absl/strings/string_view.h"

namespace convene::rendezvous {

// Whether the line of a machine check or a firmware's report says that an error was not corrected.
// The kernel logs corrected errors, too, in as many words; they harm no program.
bool TellsBrokenHardware(absl::string_view kernel_line);

}  // namespace convene::rendezvous

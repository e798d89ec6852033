// PURE. Words about what the kernel did, which agents and the daemon write and read alike.
#pragma once

#include "absl/strings/string_view.h"

namespace convene::rendezvous {

// An agent writes one of these into the reason of a death by SIGKILL.
inline constexpr char kByKernel[] = "The kernel counts";  // it killed for want of memory
inline constexpr char kNotForMemory[] = "not by the kernel's OOM killer";
// PyTorch's DataLoader, of a process of its that SIGKILL ended.
inline constexpr char kKilledChild[] = ") is killed by signal: Killed";

// Whether the line of a machine check or a firmware's report says that an error was not corrected.
// The kernel logs corrected errors, too, in as many words; they harm no program.
bool TellsBrokenHardware(absl::string_view kernel_line);

}  // namespace convene::rendezvous

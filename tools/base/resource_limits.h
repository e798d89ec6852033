// Checks the kernel's limits for this process in advance: libraries that run out of descriptors or
// threads in the middle of their work abort or wait for ever.
#pragma once

#include <cstdint>

#include "absl/status/status.h"

namespace convene {

// Makes room for open files: raises the soft limit to `wanted`, as far as the hard limit goes. A
// soft limit that is high enough stays as it is: children inherit it, and some programs close every
// number up to it. InvalidArgument, naming the limit and how to raise it, when not even `least` are
// possible. REQUIRES: least <= wanted.
absl::Status EnsureOpenFiles(int64_t least, int64_t wanted);

// Starts `count` threads at once and ends them again, after a check that the memory they map has
// room: a stack and 64 MiB of malloc's for each. InvalidArgument when that does not fit into this
// process's address space (`ulimit -v`), ResourceExhausted when the node has no room for them; the
// text names the limit to raise.
absl::Status CheckThreads(int count);

}  // namespace convene

// Memory that this process has asked for and not written to yet: the kernel counts it as free, and
// the process will take it.
#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"

namespace convene::worker {

// Of this process. 0 where the kernel does not tell.
int64_t UntouchedBytes();

// PURE. The same by the text of /proc/PID/smaps: of private memory without a file, in pieces of 16
// MiB and more. The planned memory of a trainer comes in such pieces, and stacks of threads are
// smaller: most of a stack is never written.
int64_t UntouchedIn(absl::string_view smaps);

}  // namespace convene::worker

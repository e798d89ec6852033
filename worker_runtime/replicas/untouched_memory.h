// Memory that this process has asked for and not written to yet: the kernel counts it as free, and
// the process will take it.
#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"

namespace convene::worker {

// Of this process. 0 where the kernel does not tell, and where it has no huge pages.
int64_t UntouchedBytes();

// PURE. The same by the text of /proc/PID/smaps: of private memory without a file, in pieces for
// which huge pages were asked (`hg` among the VmFlags). HostMemory asks for them for each block
// from 4 MiB on, so all planned memory of a trainer comes in such pieces. Other memory does not
// count, however large it is: most of a thread's stack, and of a sanitizer's shadow, is never
// written.
int64_t UntouchedIn(absl::string_view smaps);

}  // namespace convene::worker

#include "agent/workers/held_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"

namespace convene::agent {

HeldMemory::HeldMemory()
    : file_(memfd_create("convene-memory", MFD_CLOEXEC)),
      path_(file_.valid() ? absl::StrCat("/proc/", getpid(), "/fd/", file_.get()) : "") {}

}  // namespace convene::agent

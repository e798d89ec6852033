// Loaded before libc (LD_PRELOAD): an fsync of a file whose path contains $SLOW_DISK_PATH waits for
// as long as the file $SLOW_DISK_HOLD exists.
#include <dlfcn.h>
#include <poll.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

bool IsHeld(int fd) {
  const char* const part = std::getenv("SLOW_DISK_PATH");
  const char* const hold = std::getenv("SLOW_DISK_HOLD");
  char link[32], path[4096] = "";
  std::snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
  return part != nullptr && hold != nullptr && readlink(link, path, sizeof(path) - 1) > 0 &&
         std::strstr(path, part) != nullptr && access(hold, F_OK) == 0;
}

}  // namespace

extern "C" int fsync(int fd) {
  using Function = int (*)(int);
  static const auto libc = reinterpret_cast<Function>(dlsym(RTLD_NEXT, "fsync"));
  while (IsHeld(fd)) poll(nullptr, 0, 1);
  return libc(fd);
}

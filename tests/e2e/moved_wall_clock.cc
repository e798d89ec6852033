// Loaded before libc (LD_PRELOAD): the wall clock is wrong by as many seconds as the symbolic link
// $MOVED_WALL_CLOCK says ("3600"); no link: it is right. The monotonic clock is as it is.
#include <dlfcn.h>
#include <time.h>
#include <unistd.h>

#include <cstdlib>

namespace {

time_t Error() {
  const char* const link = std::getenv("MOVED_WALL_CLOCK");
  char seconds[32] = "";
  if (link == nullptr || readlink(link, seconds, sizeof(seconds) - 1) < 0) return 0;
  return std::strtol(seconds, nullptr, 10);
}

}  // namespace

extern "C" int clock_gettime(clockid_t clock, timespec* now) {
  using Function = int (*)(clockid_t, timespec*);
  static const auto libc = reinterpret_cast<Function>(dlsym(RTLD_NEXT, "clock_gettime"));
  const int result = libc(clock, now);
  if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) now->tv_sec += Error();
  return result;
}

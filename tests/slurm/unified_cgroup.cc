// Preloaded into the nodes' daemons of a test Slurm whose tracker is cgroup2: they read
// /proc/self/cgroup as on a machine that has cgroup v2 alone. Slurm's plugin cgroup/v2 refuses to
// run where v1 hierarchies exist beside it.
#include <linux/fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdarg>
#include <string_view>

// By another name, because the C library's headers define `open` inline.
extern "C" int OpenUnified(const char* path, int flags, ...) __asm__("open");

int OpenUnified(const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const int mode = va_arg(rest, int);  // without a meaning where the caller gives none
  va_end(rest);
  const auto file = static_cast<int>(syscall(SYS_openat, AT_FDCWD, path, flags, mode));
  if (file < 0 || std::string_view(path) != "/proc/self/cgroup") return file;
  char bytes[4096];
  const ssize_t size = read(file, bytes, sizeof(bytes));
  close(file);
  std::string_view text(bytes, size < 0 ? 0 : static_cast<size_t>(size));
  // The line of v2 is the last one.
  const size_t line = text.rfind("\n0::");
  if (line != std::string_view::npos) text.remove_prefix(line + 1);
  const int unified = memfd_create("cgroup", MFD_CLOEXEC);
  (void)!write(unified, text.data(), text.size());
  lseek(unified, 0, SEEK_SET);
  return unified;
}

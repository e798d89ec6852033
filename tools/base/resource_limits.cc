#include "tools/base/resource_limits.h"

#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <latch>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tools/base/status_macros.h"

namespace convene {
namespace {

// glibc's arena for a thread's own allocations; 8 MiB are a stack.
constexpr size_t kBytesPerThread = size_t{64 + 8} << 20;

absl::Status CheckAddressSpace(int count) {
  const size_t bytes = kBytesPerThread * static_cast<size_t>(count);
  void* const room =
      mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (room != MAP_FAILED) {
    munmap(room, bytes);
    return absl::OkStatus();
  }
  rlimit limit = {};
  getrlimit(RLIMIT_AS, &limit);
  return absl::InvalidArgumentError(
      absl::StrCat("this process's address space is limited to ", limit.rlim_cur / 1024,
                   " KiB (ulimit -v), and its threads need ", bytes / 1024,
                   " KiB more; raise that limit, or limit the memory by a cgroup instead"));
}

}  // namespace

absl::Status EnsureOpenFiles(int64_t least, int64_t wanted) {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return ErrnoStatus(errno, "getrlimit");
  const auto wanted_files = static_cast<rlim_t>(wanted);
  if (limit.rlim_max < static_cast<rlim_t>(least)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "this process may open ", limit.rlim_max, " files (ulimit -Hn) and needs at least ", least,
        "; raise the hard limit: `ulimit -n` before it was lowered, /etc/security/limits.conf, "
        "LimitNOFILE= of the service, or --ulimit nofile of the container"));
  }
  if (limit.rlim_cur >= wanted_files) return absl::OkStatus();
  limit.rlim_cur = std::min(wanted_files, limit.rlim_max);
  if (setrlimit(RLIMIT_NOFILE, &limit) != 0) return ErrnoStatus(errno, "setrlimit");
  return absl::OkStatus();
}

absl::Status CheckThreads(int count) {
  CONVENE_RETURN_IF_ERROR(CheckAddressSpace(count));
  std::latch gate(1);  // keeps threads alive until all are started
  const auto pass = [](void* opaque) -> void* {
    static_cast<std::latch*>(opaque)->wait();
    return nullptr;
  };
  std::vector<pthread_t> threads;
  while (static_cast<int>(threads.size()) < count) {
    pthread_t thread;
    if (pthread_create(&thread, nullptr, pass, &gate) != 0) break;
    threads.push_back(thread);
  }
  gate.count_down();
  for (const pthread_t thread : threads) pthread_join(thread, nullptr);
  const int started = static_cast<int>(threads.size());
  if (started == count) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("this process can start only ", started, " of the ", count,
                   " threads it needs: look at `ulimit -u`, the cgroup's pids.max, "
                   "/proc/sys/kernel/threads-max and the free memory of this node"));
}

}  // namespace convene

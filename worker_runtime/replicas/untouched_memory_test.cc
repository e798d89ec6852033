#include "worker_runtime/replicas/untouched_memory.h"

#include <pthread.h>
#include <sys/mman.h>

#include <cstring>
#include <latch>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "catch2/catch.hpp"
#include "tools/base/testing/status_testing.h"
#include "tools/base/thread.h"
#include "worker_runtime/device/device.h"

namespace convene::worker {
namespace {

constexpr int64_t kMebi = int64_t{1} << 20;

// A piece of smaps of 64 MiB, of which 1 MiB is written.
std::string Piece(const std::string& access, const std::string& file, const std::string& flags) {
  return absl::StrCat(
      "7f1000000000-7f1004000000 ", access, " 00000000 00:00 0 ", file,
      "\nSize:              65536 kB\nRss:                1024 kB\nVmFlags: ", flags, " \n");
}

TEST_CASE("private memory for which huge pages were asked counts, as far as it is not written") {
  CHECK(UntouchedIn("") == 0);
  const std::string planned = Piece("rw-p", "", "rd wr mr mw me ac hg");
  CHECK(UntouchedIn(planned) == 63 * kMebi);
  CHECK(UntouchedIn(Piece("rw-p", "", "rd wr mr mw me ac")) == 0);     // a thread's stack
  CHECK(UntouchedIn(Piece("rw-p", "", "rd wr mr mw me nr nh")) == 0);  // a sanitizer's shadow
  CHECK(UntouchedIn(Piece("---p", "", "mr mw me hg")) == 0);
  CHECK(UntouchedIn(Piece("rw-p", "/a/file", "rd wr mr mw me hg")) == 0);
  CHECK(UntouchedIn(Piece("rw-s", "/memfd:node (deleted)", "rd wr mr mw me hg")) == 0);
  CHECK(UntouchedIn(absl::StrCat(planned, Piece("rw-p", "", "rd wr"), planned)) == 126 * kMebi);
}

TEST_CASE("large stacks of threads are not planned memory") {
  constexpr int kThreads = 16;
  const int64_t before = UntouchedBytes();
  pthread_attr_t usual, large;
  REQUIRE(pthread_getattr_default_np(&usual) == 0);
  pthread_attr_init(&large);
  pthread_attr_setstacksize(&large, 64 * kMebi);
  REQUIRE(pthread_setattr_default_np(&large) == 0);
  std::latch all_counted(1);
  std::vector<Thread> threads;
  for (int i = 0; i < kThreads; ++i) threads.emplace_back("stack", [&] { all_counted.wait(); });
  CHECK(UntouchedBytes() == before);
  all_counted.count_down();
  for (Thread& thread : threads) thread.Join();
  REQUIRE(pthread_setattr_default_np(&usual) == 0);
  pthread_attr_destroy(&large);
  pthread_attr_destroy(&usual);
}

TEST_CASE("what this process has planned is counted until it is written") {
  constexpr size_t kBytes = size_t{256} << 20;
  const int64_t before = UntouchedBytes();
  const auto data = HostMemory().Allocate(kBytes);
  REQUIRE_OK(data);
  if (madvise(*data, kBytes, MADV_HUGEPAGE) != 0) {
    CHECK(UntouchedBytes() == 0);  // a kernel without huge pages
  } else {
    CHECK(UntouchedBytes() - before == 256 * kMebi);
    std::memset(*data, 1, kBytes);
    CHECK(UntouchedBytes() == before);
  }
  HostMemory().Free(*data, kBytes);
}

}  // namespace
}  // namespace convene::worker

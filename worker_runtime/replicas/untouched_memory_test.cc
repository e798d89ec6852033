#include "worker_runtime/replicas/untouched_memory.h"

#include <sys/mman.h>

#include <catch2/catch.hpp>
#include <cstring>

namespace convene::worker {
namespace {

TEST_CASE("large private memory without a file counts, as far as it is not written") {
  CHECK(UntouchedIn("") == 0);
  CHECK(UntouchedIn("7f1000000000-7f1002000000 rw-p 00000000 00:00 0 \n"
                    "Size:              32768 kB\n"
                    "Rss:                1024 kB\n"
                    "VmFlags: rd wr mr mw me ac \n"
                    "7f2000000000-7f2000800000 rw-p 00000000 00:00 0 \n"  // a stack
                    "Size:               8192 kB\n"
                    "Rss:                   4 kB\n"
                    "7f3000000000-7f3004000000 ---p 00000000 00:00 0 \n"
                    "Size:              65536 kB\n"
                    "Rss:                   0 kB\n"
                    "7f4000000000-7f4004000000 rw-p 00000000 08:01 77 /a/file\n"
                    "Size:              65536 kB\n"
                    "Rss:                   0 kB\n"
                    "7f5000000000-7f5004000000 rw-s 00000000 00:01 9 /memfd:node (deleted)\n"
                    "Size:              65536 kB\n"
                    "Rss:                   0 kB\n"
                    "7f6000000000-7f6002000000 rw-p 00000000 00:00 0 \n"
                    "Size:              32768 kB\n"
                    "Rss:               32768 kB\n") == (int64_t{31} << 20));
}

TEST_CASE("what this process has asked for is counted until it is written") {
  constexpr size_t kBytes = size_t{256} << 20;
  const int64_t before = UntouchedBytes();
  void* const data =
      mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(data != MAP_FAILED);
  const int64_t asked_for = UntouchedBytes() - before;
  CHECK(asked_for > int64_t{240} << 20);
  std::memset(data, 1, kBytes);
  CHECK(UntouchedBytes() - before < int64_t{16} << 20);
  munmap(data, kBytes);
}

}  // namespace
}  // namespace convene::worker

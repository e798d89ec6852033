#include "tools/base/core_files.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <csignal>

#include "absl/functional/function_ref.h"
#include "tools/base/testing/temp_dir.h"

namespace convene {
namespace {

rlim_t SoftLimit() {
  rlimit limit = {};
  getrlimit(RLIMIT_CORE, &limit);
  return limit.rlim_cur;
}

// The end of a child that may leave a core file as large as the machine allows, in a folder of its
// own, and does `deed` first.
int EndOfChild(absl::FunctionRef<void()> deed) {
  const testing::TempDir directory;
  const pid_t child = fork();
  if (child == 0) {
    rlimit limit = {};
    getrlimit(RLIMIT_CORE, &limit);
    limit.rlim_cur = limit.rlim_max;
    if (setrlimit(RLIMIT_CORE, &limit) != 0 || chdir(directory.path().c_str()) != 0) _exit(1);
    deed();
    signal(SIGABRT, SIG_DFL);  // Catch's own handler is none of this test.
    raise(SIGABRT);
    _exit(1);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  return status;
}

TEST_CASE("a process that keeps a secret leaves no core file, and its children have their limit") {
  const int as_ever = EndOfChild([] {});
  REQUIRE(WIFSIGNALED(as_ever));
  if (!WCOREDUMP(as_ever)) WARN("nothing leaves a core file here: this test sees the limits alone");
  const int kept = EndOfChild([] { LeaveNoCoreFile(); });
  CHECK(WIFSIGNALED(kept));
  CHECK_FALSE(WCOREDUMP(kept));
  const int restored = EndOfChild([] {
    LeaveNoCoreFile();
    RestoreCoreLimit();
  });
  CHECK(WIFSIGNALED(restored));
  CHECK(WCOREDUMP(restored) == WCOREDUMP(as_ever));
}

TEST_CASE("the limit is 1, which starts no program of core_pattern either, and comes back") {
  const int status = EndOfChild([] {
    const rlim_t before = SoftLimit();
    if (before == 0) _exit(0);  // The hard limit is 0, and nothing can be changed.
    RestoreCoreLimit();
    if (SoftLimit() != before) _exit(2);
    LeaveNoCoreFile();
    LeaveNoCoreFile();
    if (SoftLimit() != 1) _exit(3);
    RestoreCoreLimit();
    _exit(SoftLimit() == before ? 0 : 4);
  });
  REQUIRE(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
}

}  // namespace
}  // namespace convene

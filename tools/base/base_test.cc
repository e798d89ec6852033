#include <pthread.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <functional>
#include <new>
#include <stdexcept>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "tools/base/backoff.h"
#include "tools/base/exit_code.h"
#include "tools/base/exit_deadline.h"
#include "tools/base/files.h"
#include "tools/base/resource_limits.h"
#include "tools/base/testing/status_testing.h"
#include "tools/base/testing/temp_dir.h"
#include "tools/base/text.h"
#include "tools/base/thread.h"

namespace convene {
namespace {

using testing::TempDir;

TEST_CASE("an atomic write leaves the old content when the disk is full") {
  TempDir dir;
  const std::string path = dir.File("manifest");
  REQUIRE_OK(WriteFileAtomic(path, "old"));
  {
    ScopedFileFault fault(
        [](FileOp op, const std::string&) { return op == FileOp::kWrite ? ENOSPC : 0; });
    CHECK_STATUS(WriteFileAtomic(path, "new"), absl::StatusCode::kResourceExhausted, path);
  }
  CHECK(*ReadFile(path) == "old");
  CHECK(ListDirectory(dir.path())->size() == 1);
}

TEST_CASE("an atomic write that cannot be renamed removes its temporary file") {
  TempDir dir;
  ScopedFileFault fault(
      [](FileOp op, const std::string&) { return op == FileOp::kRename ? EACCES : 0; });
  CHECK_STATUS(WriteFileAtomic(dir.File("a"), "x"), absl::StatusCode::kPermissionDenied, "rename");
  CHECK(ListDirectory(dir.path())->empty());
}

TEST_CASE("a missing file is NotFound and named") {
  CHECK_STATUS(ReadFile("/no/such/file"), absl::StatusCode::kNotFound, "/no/such/file");
}

TEST_CASE("the closest match forgives dashes and typing slips, not other words") {
  const std::vector<std::string> keys = {"tp-size", "pp-size", "learning-rate", "micro-batch-size"};
  CHECK(ClosestMatch("tp_size", keys) == "tp-size");
  CHECK(ClosestMatch("learning-rat", keys) == "learning-rate");
  CHECK(ClosestMatch("microbatch_size", keys) == "micro-batch-size");
  CHECK(ClosestMatch("checkpoint", keys).empty());
}

TEST_CASE("long lists are capped") {
  CHECK(JoinCapped({"a", "b", "c", "d"}, 2) == "a, b and 2 more");
  CHECK(JoinCapped({"a", "b"}, 2) == "a, b");
}

TEST_CASE("back-off doubles up to its limit") {
  Backoff backoff(absl::Seconds(1), absl::Seconds(3));
  CHECK(backoff.Next(0.0) == absl::Milliseconds(500));
  CHECK(backoff.Next(0.0) == absl::Seconds(1));
  CHECK(backoff.Next(0.0) == absl::Milliseconds(1500));
  CHECK(backoff.Next(0.0) == absl::Milliseconds(1500));
}

TEST_CASE("exit codes follow the table") {
  CHECK(ExitCodeForStatus(absl::InvalidArgumentError("")) == ExitCode::kUsage);
  CHECK(ExitCodeForStatus(absl::UnavailableError("")) == ExitCode::kUnavailable);
  CHECK(ExitCodeForStatus(absl::AbortedError("")) == ExitCode::kMembershipChanged);
  CHECK(ExitCodeForStatus(absl::UnimplementedError("")) == ExitCode::kUsage);
  CHECK(ExitCodeForSignal(SIGTERM) == 143);
  CHECK_THAT(ExitCodeTable(), Catch::Contains("75") && Catch::Contains("128+n"));
}

// Runs `body` in a process of its own; returns the exit code.
int ExitCodeOf(const std::function<int()>& body) {
  const pid_t pid = fork();
  REQUIRE(pid >= 0);
  if (pid == 0) _exit(body());
  int status = 0;
  REQUIRE(waitpid(pid, &status, 0) == pid);
  REQUIRE(WIFEXITED(status));
  return WEXITSTATUS(status);
}

TEST_CASE("open files: the soft limit is raised as far as wanted, and no further") {
  CHECK(ExitCodeOf([] {
          rlimit limit = {50, 200};
          setrlimit(RLIMIT_NOFILE, &limit);
          const auto soft = [&] { return getrlimit(RLIMIT_NOFILE, &limit), limit.rlim_cur; };
          if (!EnsureOpenFiles(20, 40).ok() || soft() != 50) return 1;
          if (!EnsureOpenFiles(60, 120).ok() || soft() != 120) return 2;
          if (!EnsureOpenFiles(60, 5000).ok() || soft() != 200) return 3;
          const absl::Status status = EnsureOpenFiles(201, 5000);
          return absl::IsInvalidArgument(status) &&
                         status.message().find("200") != absl::string_view::npos
                     ? 0
                     : 4;
        }) == 0);
}

TEST_CASE("threads that cannot be started are noticed before they are needed") {
  CHECK_OK(CheckThreads(8));
  CHECK(ExitCodeOf([] {
          pthread_attr_t attributes;
          pthread_attr_init(&attributes);
          pthread_attr_setstacksize(&attributes, size_t{1} << 46);
          pthread_setattr_default_np(&attributes);
          return absl::IsResourceExhausted(CheckThreads(8)) ? 0 : 1;
        }) == 0);
}

TEST_CASE("a thread that cannot be started is a status, or the process's clear end") {
  Thread thread;
  {
    const ScopedThreadFault fault("worker");
    CHECK_STATUS(Thread::Start("worker", [] {}).status(), absl::StatusCode::kResourceExhausted,
                 "cannot start the thread \"worker\"");
    auto other = Thread::Start("other", [] {});
    REQUIRE_OK(other);
    other->Join();
    CHECK(ExitCodeOf([] {
            const Thread needed("worker", [] {});
            return 0;
          }) == static_cast<int>(ExitCode::kUnfitNode));
  }
  auto again = Thread::Start("worker", [] {});
  REQUIRE_OK(again);
  again->Join();
}

TEST_CASE("the system's own refusal of a thread is a status") {
  CHECK(ExitCodeOf([] {
          pthread_attr_t attributes;
          pthread_attr_init(&attributes);
          pthread_attr_setstacksize(&attributes, size_t{1} << 46);
          pthread_setattr_default_np(&attributes);
          return absl::IsResourceExhausted(Thread::Start("worker", [] {}).status()) ? 0 : 1;
        }) == 0);
}

TEST_CASE("an exception that nobody caught ends a program by the table of exit codes") {
  const auto code = [](const std::function<int()>& body) { return ExitCodeOfMain("test", body); };
  CHECK(code([] { return 3; }) == 3);
  CHECK(code([]() -> int { throw std::bad_alloc(); }) == 71);
  CHECK(code([]() -> int {
          throw std::system_error(std::make_error_code(std::errc::resource_unavailable_try_again));
        }) == 71);
  CHECK(code([]() -> int { throw std::out_of_range("x"); }) == 70);
}

TEST_CASE("an atomic write does not write through a link at the place of its temporary file") {
  const TempDir dir;
  const std::string path = dir.File("note");
  REQUIRE_OK(WriteFileAtomic(dir.File("victim"), "precious"));
  REQUIRE(symlink(dir.File("victim").c_str(), absl::StrCat(path, ".tmp.", getpid()).c_str()) == 0);
  REQUIRE_OK(WriteFileAtomic(path, "new"));
  CHECK(*ReadFile(dir.File("victim")) == "precious");
  CHECK(*ReadFile(path) == "new");
}

TEST_CASE("text from outside becomes UTF-8, and is cut between characters") {
  CHECK(Utf8("sch\xC3\xB6n \xE2\x82\xAC \xF0\x9F\x98\x80") ==
        "sch\xC3\xB6n \xE2\x82\xAC \xF0\x9F\x98\x80");
  CHECK(Utf8("\xFF\xC3x") == "??x");
  CHECK(PrintableLines("a\x1B\n\tb\n") == "a?\n?b\n");
  CHECK(Printable("\x1B[2J a\tb\xC2\x9B\x31\xC2\xA0\x7F\xFF") == "?[2J a?b?1\xC2\xA0??");
  CHECK(Utf8("\xC0\xAF") == "??");        // Not the shortest form.
  CHECK(Utf8("\xED\xA0\x80") == "???");   // A surrogate.
  CHECK(Utf8("end\xE2\x82") == "end??");  // Cut by its writer.
  CHECK(Utf8("x\xC3\xB6", 2) == "x");     // Cut by us.
}

TEST_CASE("an exit deadline ends a process that hangs, and leaves one alone that does not") {
  CHECK(ExitCodeOf([] {
          const ExitDeadline deadline(absl::Milliseconds(10), 7, "hung");
          for (;;) pause();
          return 0;
        }) == 7);
  CHECK(ExitCodeOf([] {
          { const ExitDeadline deadline(absl::Hours(1), 7, "hung"); }
          itimerval left = {};
          getitimer(ITIMER_REAL, &left);
          return left.it_value.tv_sec == 0 && left.it_value.tv_usec == 0 ? 3 : 4;
        }) == 3);
}

}  // namespace
}  // namespace convene

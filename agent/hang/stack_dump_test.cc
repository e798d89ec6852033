#include "agent/hang/stack_dump.h"

#include <signal.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <optional>

#include <catch2/catch.hpp>
#include "absl/strings/str_join.h"
#include "tools/base/clock.h"
#include "tools/base/files.h"
#include "tools/base/testing/poll.h"
#include "tools/base/testing/status_testing.h"
#include "tools/base/testing/temp_dir.h"

namespace convene::agent {
namespace {

using Catch::Contains;

constexpr absl::Duration kPatience = absl::Seconds(20);

// A process that waits.
class Sleeper {
 public:
  explicit Sleeper(bool catches = false) : pid_(fork()) {
    REQUIRE(pid_ >= 0);
    if (pid_ == 0) {
      alarm(60);
      if (catches) signal(SIGUSR2, [](int) { _exit(5); });
      while (true) pause();
    }
    AwaitView("S (sleeping)");
  }
  ~Sleeper() {
    if (!ended_) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
  }
  pid_t pid() const { return pid_; }
  std::string View() const { return absl::StrJoin(KernelView(3, pid_), "\n"); }
  void AwaitView(const std::string& text) const {
    CHECK(testing::PollUntil([&] { return View().find(text) != std::string::npos; }, kPatience));
  }
  int Wait() {
    int status = 0;
    waitpid(pid_, &status, 0);
    ended_ = true;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

 private:
  const pid_t pid_;
  bool ended_ = false;
};

struct Fixture {
  StackDump::Result Dump(const StackTarget& target, absl::Duration deadline = kPatience) {
    std::optional<StackDump::Result> result;
    const StackDump dump(loop, {target}, tools.path(), deadline,
                         [&](StackDump::Result r) { result = std::move(r); });
    const MonotonicTime end = Clock::Real().Now() + kPatience;
    while (!result.has_value() && Clock::Real().Now() < end) loop.RunOnce(end);
    REQUIRE(result.has_value());
    return *result;
  }
  void MakeTool(const std::string& name, const std::string& script) {
    REQUIRE_OK(WriteFileAtomic(tools.File(name), "#!/bin/sh\n" + script));
    REQUIRE(chmod(tools.File(name).c_str(), 0700) == 0);
  }

  testing::TempDir tools;
  EventLoop loop;
};

TEST_CASE("the kernel tells a process's threads, their state and where they wait") {
  Sleeper sleeper;
  CHECK_THAT(sleeper.View(), Contains("rank 3 (pid ") && Contains("1 thread, "));
  kill(sleeper.pid(), SIGSTOP);
  sleeper.AwaitView("T (stopped)");
  CHECK(KernelView(3, 1 << 30).empty());
}

TEST_CASE_METHOD(Fixture, "without tools there is still the kernel's view") {
  const Sleeper sleeper;
  const StackDump::Result result = Dump({.global_rank = 3, .pid = sleeper.pid()});
  CHECK(result.stack.empty());
  CHECK_THAT(absl::StrJoin(result.lines, "\n"), Contains("rank 3 (pid "));
}

TEST_CASE_METHOD(Fixture, "a debugger's stack comes first, without what it says of itself") {
  MakeTool("gdb", "echo '[New LWP 12]'; echo 'Thread 1 (LWP 11)'; echo \"#0  main $*\"; exit 1");
  const Sleeper sleeper;
  const StackDump::Result result = Dump({.global_rank = 3, .pid = sleeper.pid()});
  REQUIRE(result.stack.size() == 3);
  CHECK(result.stack[0] == "stacks of rank 3 by gdb:");
  CHECK(result.stack[1] == "Thread 1 (LWP 11)");
  CHECK_THAT(result.stack[2], Contains("-p " + std::to_string(sleeper.pid())));
  CHECK(result.lines[1] == "Thread 1 (LWP 11)");
  CHECK_THAT(result.lines.back(), Contains("sleeping"));
}

TEST_CASE_METHOD(Fixture, "a debugger that may not look says so, and the kernel's view follows") {
  MakeTool("gdb", "echo 'ptrace: Operation not permitted.' >&2; exit 1");
  const Sleeper sleeper;
  const StackDump::Result result = Dump({.global_rank = 3, .pid = sleeper.pid()});
  CHECK(result.stack.empty());
  CHECK(result.lines[0] == "stacks of rank 3 by gdb: none");
  CHECK(result.lines[1] == "ptrace: Operation not permitted.");
}

TEST_CASE_METHOD(Fixture, "a debugger that hangs is killed at the deadline") {
  MakeTool("gdb", "echo '#0  so far'; sleep 600");
  const Sleeper sleeper;
  const StackDump::Result result =
      Dump({.global_rank = 3, .pid = sleeper.pid()}, absl::Milliseconds(300));
  REQUIRE(result.stack.size() == 2);
  CHECK_THAT(result.stack[0], Contains("cut off by the deadline"));
  CHECK(result.stack[1] == "#0  so far");
}

TEST_CASE_METHOD(Fixture, "a debugger's flood is cut") {
  MakeTool("gdb", "seq -f '#%.0f xxxxxxxxxxxxxxxxxxxxxxxxxxxxxx' 1 100000");
  const Sleeper sleeper;
  const StackDump::Result result = Dump({.global_rank = 3, .pid = sleeper.pid()});
  CHECK(result.lines.size() == 500);
  CHECK_THAT(result.lines.back(), Contains("sleeping"));
}

TEST_CASE_METHOD(Fixture, "SIGUSR2 goes only to a process that says it answers, and catches it") {
  Sleeper catches(/*catches=*/true);
  Dump({.global_rank = 3, .pid = catches.pid(), .dumps_on_signal = false});
  CHECK(waitpid(catches.pid(), nullptr, WNOHANG) == 0);
  Dump({.global_rank = 3, .pid = catches.pid(), .dumps_on_signal = true});
  CHECK(catches.Wait() == 5);
  // It would die of the signal.
  const Sleeper lies;
  Dump({.global_rank = 3, .pid = lies.pid(), .dumps_on_signal = true});
  CHECK(waitpid(lies.pid(), nullptr, WNOHANG) == 0);
}

TEST_CASE("a process that is being debugged is known as such") {
  const Sleeper sleeper;
  CHECK_FALSE(IsTraced(sleeper.pid()));
  if (ptrace(PTRACE_SEIZE, sleeper.pid(), nullptr, nullptr) != 0) return;  // Not permitted here.
  CHECK(IsTraced(sleeper.pid()));
  ptrace(PTRACE_DETACH, sleeper.pid(), nullptr, nullptr);
}

}  // namespace
}  // namespace convene::agent

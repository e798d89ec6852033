#include "worker_runtime/session/session.h"

#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <functional>

#include "tools/base/clock.h"

namespace convene::worker {
namespace {

// Sends itself SIGTERM as a worker without an agent, in a process of its own. Returns its exit
// code: 1 when it was still there after ten seconds.
int ExitCodeAfterTerm(const std::function<void(StopToken&)>& before) {
  const pid_t pid = fork();
  if (pid == 0) {
    BlockStopSignals();
    StopToken token;
    const auto session = Session::Start(Contract(), token);
    if (!session.ok()) _exit(2);
    before(token);
    kill(getpid(), SIGTERM);
    const MonotonicTime deadline = Clock::Real().Now() + absl::Seconds(10);
    while (token.reason() == StopReason::kNone && Clock::Real().Now() < deadline) sched_yield();
    _exit(token.reason() == StopReason::kTerminated ? 3 : 1);
  }
  int status = 0;
  REQUIRE(waitpid(pid, &status, 0) == pid);
  REQUIRE(WIFEXITED(status));
  return WEXITSTATUS(status);
}

TEST_CASE("a stop during start-up ends the process at once, since nobody looks at the token") {
  CHECK(ExitCodeAfterTerm([](StopToken&) {}) == 128 + SIGTERM);
}

TEST_CASE("a stop of a program that watches its token is left to the program") {
  CHECK(ExitCodeAfterTerm([](StopToken& token) { token.Watch(); }) == 3);
}

}  // namespace
}  // namespace convene::worker

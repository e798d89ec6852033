#include "agent/custody/bounded_command.h"

#include <signal.h>

#include <optional>

#include "absl/strings/match.h"
#include "agent/workers/health_check.h"
#include "tools/base/clock.h"
#include "tools/base/files.h"
#include "tools/base/testing/poll.h"
#include "tools/base/testing/status_testing.h"
#include "tools/base/testing/temp_dir.h"

namespace convene::agent {
namespace {

using Outcome = BoundedCommand::Outcome;

constexpr absl::Duration kPatience = absl::Seconds(20);

struct Fixture {
  Outcome Run(const std::string& script, absl::Duration timeout = kPatience) {
    request.spawn.program = "/bin/sh";
    request.spawn.arguments = {"sh", "-c", script};
    request.spawn.environment = {"PATH=/usr/bin:/bin"};
    request.timeout = timeout;
    std::optional<Outcome> outcome;
    auto command = BoundedCommand::Start(loop, request, [&](Outcome o) { outcome = std::move(o); });
    REQUIRE_OK(command);
    const MonotonicTime deadline = Clock::Real().Now() + kPatience;
    while (!outcome.has_value() && Clock::Real().Now() < deadline) loop.RunOnce(deadline);
    REQUIRE(outcome.has_value());
    return *outcome;
  }
  absl::Status Check(const HealthCheck& check) {
    std::optional<absl::Status> verdict;
    auto command = StartHealthCheck(loop, check, {"PATH=/usr/bin:/bin", "CONVENE_EPOCH=3"},
                                    [&](const absl::Status& status) { verdict = status; });
    REQUIRE_OK(command);
    const MonotonicTime deadline = Clock::Real().Now() + kPatience;
    while (!verdict.has_value() && Clock::Real().Now() < deadline) loop.RunOnce(deadline);
    REQUIRE(verdict.has_value());
    return *verdict;
  }

  BoundedCommand::Request request;
  EventLoop loop;
};

TEST_CASE_METHOD(Fixture, "both streams and the end of a command are told") {
  request.first_bytes = 100;
  const Outcome outcome = Run("echo out; echo err >&2; exit 7");
  CHECK(outcome.output == "out\nerr\n");
  CHECK(outcome.status.exit_code == 7);
  CHECK_FALSE(outcome.timed_out);
}

TEST_CASE_METHOD(Fixture, "TERM ends a command unless it is told to ignore that") {
  request.first_bytes = 100;
  const std::string script = "kill -TERM $$; echo lives";
  CHECK(Run(script).status.signal == SIGTERM);
  request.spawn.ignores_term = true;
  CHECK(Run(script).output == "lives\n");
}

TEST_CASE_METHOD(Fixture,
                 "a check that is a program wants no shell, and goes by its command's name") {
  CHECK_OK(Check({.command = "exit 3", .program = {"/bin/true"}}));
  CHECK_STATUS(Check({.command = "doctor", .program = {"/usr/bin/env", "false"}}),
               absl::StatusCode::kFailedPrecondition, "the health check `doctor` ended with exit");
}

TEST_CASE_METHOD(Fixture, "of a flood the beginning and the end are kept") {
  request.first_bytes = 6;
  request.last_bytes = 5;
  CHECK(Run("seq 1 100000").output == "1\n2\n3\n\n...\n0000\n");
}

TEST_CASE_METHOD(Fixture, "a command that does not end is killed, with all that it started") {
  const testing::TempDir directory;
  const std::string pid_file = directory.File("pid");
  request.first_bytes = 100;
  const Outcome outcome =
      Run("echo begun; sleep 600 & echo $! > " + pid_file + "; wait", absl::Milliseconds(300));
  CHECK(outcome.timed_out);
  CHECK(outcome.output == "begun\n");
  const auto pid = ReadFile(pid_file);
  REQUIRE_OK(pid);
  CHECK(testing::PollUntil(
      [&] {
        const auto status = ReadFile("/proc/" + pid->substr(0, pid->size() - 1) + "/stat");
        return !status.ok() || absl::StrContains(*status, ") Z ");
      },
      kPatience));
}

TEST_CASE_METHOD(Fixture, "what a command leaves in the background does not hold its end up") {
  const MonotonicTime begin = Clock::Real().Now();
  CHECK(Run("sleep 600 & exit 0").status.exit_code == 0);
  CHECK(Clock::Real().Now() - begin < absl::Seconds(10));
}

TEST_CASE_METHOD(Fixture, "a health check that ends with 0 passes, and knows the epoch") {
  CHECK_OK(Check({.command = "[ $CONVENE_EPOCH = 3 ]"}));
}

TEST_CASE_METHOD(Fixture, "a health check that fails says how, and what it printed last") {
  CHECK_STATUS(Check({.command = "echo GPU 3: 2 uncorrectable errors; exit 9"}),
               absl::StatusCode::kFailedPrecondition,
               "` ended with exit code 9. Its last lines:\n  GPU 3: 2 uncorrectable errors");
  CHECK_STATUS(Check({.command = "kill -ABRT $$"}), absl::StatusCode::kFailedPrecondition,
               "was killed by SIGABRT. It printed nothing.");
  CHECK_STATUS(Check({.command = "sleep 600", .timeout = absl::Milliseconds(200)}),
               absl::StatusCode::kFailedPrecondition, "did not end within 200ms");
}

TEST_CASE_METHOD(Fixture, "what a health check prints is made fit for the wire") {
  const absl::Status status = Check({.command = "printf 'bad \\377 byte'; exit 1"});
  CHECK_STATUS(status, absl::StatusCode::kFailedPrecondition, "bad ? byte");
}

}  // namespace
}  // namespace convene::agent

#include "agent/core/explain.h"

#include <csignal>

#include <catch2/catch.hpp>

namespace convene::agent {
namespace {

using rendezvous::Close;
using rendezvous::Outcome;
using rendezvous::WorkerFailure;

WorkerFailure Failure(int exit_code, int signal = 0) {
  WorkerFailure failure;
  failure.global_rank = 5;
  failure.local_rank = 1;
  failure.host = "node3";
  failure.pid = 77;
  failure.exit_code = exit_code;
  failure.signal = signal;
  return failure;
}

Result Closed(const WorkerFailure& failure, bool propagate) {
  return ResultOfClose(Close{Outcome::kFailed, "the budget is spent", failure}, "job", propagate,
                       Epoch(1));
}

TEST_CASE("the first failure is told with its place, its error file and its last lines, in order") {
  WorkerFailure failure = Failure(1);
  failure.error_lines = {"RuntimeError: CUDA error", "second line"};
  failure.error_file = "/logs/error.json";
  failure.last_log_lines = {"Traceback", "boom"};
  CHECK(
      Closed(failure, false).explanation ==
      "Job job failed: the budget is spent. The first failure was rank 5 (local rank 1, pid 77) on "
      "node3: exit code 1. Its error file /logs/error.json says:\n  RuntimeError: CUDA error\n  "
      "second line\nLook "
      "at the worker's last lines for the first error. Its last lines:\n  Traceback\n  boom");
}

TEST_CASE(
    "a failed job ends with 1, or with the first failed worker's own code when that is asked") {
  CHECK(Closed(Failure(3), false).exit_code == 1);
  CHECK(Closed(Failure(3), false).failure->pid == 77);
  CHECK(Closed(Failure(3), true).exit_code == 3);
  CHECK(Closed(Failure(76), true).exit_code == 76);
  CHECK(Closed(Failure(0, SIGKILL), false).exit_code == 1);
  CHECK(Closed(Failure(0, SIGKILL), true).exit_code == 137);
  WorkerFailure usage = Failure(64);
  usage.is_final = true;
  CHECK(Closed(usage, false).exit_code == 64);
  CHECK(Closed(usage, true).exit_code == 64);
}

TEST_CASE("a job that ends for another reason keeps its code, and a success is never a failure") {
  Close close{Outcome::kTimedOut, "too few nodes", {}};
  CHECK(ResultOfClose(close, "job", true, Epoch(1)).exit_code == 69);
  close.outcome = Outcome::kSucceeded;
  CHECK(ResultOfClose(close, "job", true, Epoch(1)).exit_code == 0);
}

TEST_CASE("what ends the run later does not mask the failure that this node saw") {
  const Result result = WithFailure(ResultOfSignal(SIGTERM), Failure(3));
  CHECK(result.exit_code == 143);
  CHECK(result.failure->exit_code == 3);
  CHECK_THAT(result.explanation, Catch::StartsWith("Stopped by SIGTERM") &&
                                     Catch::Contains("An earlier failure: rank 5") &&
                                     Catch::Contains("exit code 3"));
  CHECK(WithFailure(ResultOfSignal(SIGTERM), {}).explanation ==
        ResultOfSignal(SIGTERM).explanation);
  CHECK(WithFailure(Result{}, Failure(3)).explanation.empty());
}

TEST_CASE("the first failure is the last epoch's, and is called so") {
  const Close close{Outcome::kFailed, "the budget is spent", Failure(1)};
  CHECK_THAT(ResultOfClose(close, "job", false, Epoch(3)).explanation,
             Catch::Contains(" The first failure of epoch 3 was rank 5 "));
}

TEST_CASE("an earlier failure begins on a line of its own behind a worker's lines") {
  Result result = ResultOfHealthCheck("a", absl::UnknownError("GPU 3:\n  is sick"));
  CHECK_THAT(WithFailure(result, Failure(3)).explanation,
             Catch::Contains("is sick\nAn earlier failure: rank 5"));
}

TEST_CASE("the kernel's lines are told, and nobody is sent to look for what is known") {
  WorkerFailure failure = Failure(0, SIGKILL);
  failure.why = "killed by SIGKILL (not by the kernel's OOM killer)";
  CHECK_THAT(Closed(failure, false).explanation, !Catch::Contains("dmesg"));
  failure.why = "killed by SIGKILL";
  failure.kernel_lines = {"Out of memory: Killed process 77 (python3)"};
  failure.last_log_lines = {"boom"};
  CHECK_THAT(
      Closed(failure, false).explanation,
      Catch::EndsWith(" The kernel says:\n  Out of memory: Killed process 77 (python3)\nIts last "
                      "lines:\n  boom"));
}

TEST_CASE("the last words of a failed run name the folder of its logs") {
  const std::string words = WithLogs(Closed(Failure(1), false), "/logs/job_1").explanation;
  CHECK_THAT(words,
             Catch::StartsWith("Job job failed") &&
                 Catch::EndsWith("\nThe log files of this node's workers are in /logs/job_1"));
  CHECK(WithLogs(Result{}, "/logs/job_1").explanation.empty());
}

TEST_CASE("an exit code of a session has its own advice, that of any other program has not") {
  WorkerFailure failure = Failure(76);
  failure.why = "exit code 76";
  CHECK_THAT(Closed(failure, false).explanation, !Catch::Contains("device check"));
  failure.why = "exit code 76 (suspect device)";
  CHECK_THAT(Closed(failure, false).explanation, Catch::Contains("device check"));
  failure = Failure(75);
  CHECK_THAT(Closed(failure, false).explanation, !Catch::Contains("to be started again"));
  failure.costs_budget = false;
  CHECK_THAT(Closed(failure, false).explanation, Catch::Contains("to be started again"));
}

TEST_CASE("a store port that is taken is told with what to do about it") {
  CHECK_THAT(
      ResultOfStoreFailure(absl::AlreadyExistsError("cannot listen on h:7")).explanation,
      Catch::Contains("cannot listen on h:7. Another program") && Catch::Contains("--master-port"));
  CHECK_THAT(ResultOfStoreFailure(absl::UnavailableError("gone")).explanation,
             Catch::EndsWith("gone"));
}

}  // namespace
}  // namespace convene::agent

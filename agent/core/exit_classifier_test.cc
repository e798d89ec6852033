#include "agent/core/exit_classifier.h"

#include <csignal>
#include <string>

#include <catch2/catch.hpp>

namespace convene::agent {
namespace {

TEST_CASE("each way a worker can end has its own words and its own price") {
  struct Row {
    int code;
    int signal;
    ExitKind kind;
    bool costs_budget;
    std::string why;
  };
  const Row rows[] = {
      {0, 0, ExitKind::kSucceeded, false, "exit code 0"},
      {1, 0, ExitKind::kFailed, true, "exit code 1"},
      {75, 0, ExitKind::kMembershipChanged, false, "exit code 75 (membership changed)"},
      {76, 0, ExitKind::kSuspectDevice, true, "exit code 76 (suspect device)"},
      {126, 0, ExitKind::kNotRunnable, true, "exit code 126 (program not executable)"},
      {127, 0, ExitKind::kNotRunnable, true, "exit code 127 (program not found)"},
      {137, 0, ExitKind::kFailed, true, "exit code 137 (a shell's word for SIGKILL)"},
      {255, 0, ExitKind::kFailed, true, "exit code 255"},
      {0, SIGKILL, ExitKind::kKilled, true, "killed by SIGKILL (out of memory?)"},
      {0, SIGSEGV, ExitKind::kKilled, true, "killed by SIGSEGV"},
      {0, 63, ExitKind::kKilled, true, "killed by signal 63"},
  };
  for (const Row& row : rows) {
    INFO("code " << row.code << " signal " << row.signal);
    const ExitVerdict verdict = ClassifyExit(row.code, row.signal);
    CHECK(verdict.kind == row.kind);
    CHECK(verdict.costs_budget == row.costs_budget);
    CHECK(verdict.why == row.why);
    CHECK(verdict.next_step.empty() == (row.kind == ExitKind::kSucceeded));
  }
}

TEST_CASE("a core dump is mentioned") {
  ExitStatus status;
  status.signal = SIGABRT;
  status.core_dumped = true;
  CHECK(ClassifyExit(status).why == "killed by SIGABRT (core dumped)");
}

}  // namespace
}  // namespace convene::agent

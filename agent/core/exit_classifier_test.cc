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
      {64, 0, ExitKind::kFailed, true, "exit code 64"},
      {75, 0, ExitKind::kFailed, true, "exit code 75"},
      {76, 0, ExitKind::kFailed, true, "exit code 76"},
      {126, 0, ExitKind::kFailed, true, "exit code 126 (program not executable)"},
      {127, 0, ExitKind::kFailed, true, "exit code 127 (program or library not found)"},
      {137, 0, ExitKind::kFailed, true, "exit code 137 (a shell's word for SIGKILL)"},
      {255, 0, ExitKind::kFailed, true, "exit code 255"},
      {0, SIGKILL, ExitKind::kFailed, true, "killed by SIGKILL (out of memory?)"},
      {0, SIGSEGV, ExitKind::kFailed, true, "killed by SIGSEGV"},
      {0, 63, ExitKind::kFailed, true, "killed by signal 63"},
  };
  for (const Row& row : rows) {
    INFO("code " << row.code << " signal " << row.signal);
    const ExitVerdict verdict = ClassifyExit({row.code, row.signal}, /*in_session=*/false);
    CHECK(verdict.kind == row.kind);
    CHECK(verdict.costs_budget == row.costs_budget);
    CHECK(verdict.why == row.why);
    CHECK(verdict.next_step.empty() == (row.kind == ExitKind::kSucceeded));
  }
}

TEST_CASE("only a worker in session asks for a new start, or suspects its device") {
  const ExitVerdict again = ClassifyExit({75, 0}, /*in_session=*/true);
  CHECK(again.kind == ExitKind::kMembershipChanged);
  CHECK_FALSE(again.costs_budget);
  CHECK(again.why == "exit code 75 (membership changed)");
  const ExitVerdict suspect = ClassifyExit({76, 0}, /*in_session=*/true);
  CHECK(suspect.kind == ExitKind::kFailed);
  CHECK(suspect.costs_budget);
  CHECK(suspect.why == "exit code 76 (suspect device)");
}

TEST_CASE("a core dump is mentioned") {
  ExitStatus status;
  status.signal = SIGABRT;
  status.core_dumped = true;
  CHECK(ClassifyExit(status, /*in_session=*/false).why == "killed by SIGABRT (core dumped)");
}

TEST_CASE("the kernel's count tells a death for want of memory from other kills") {
  const auto why = [](std::optional<int64_t> memory_kills) {
    return ClassifyExit({0, SIGKILL, false, memory_kills}, /*in_session=*/false).why;
  };
  CHECK(why(0) == "killed by SIGKILL (not by the kernel's OOM killer)");
  CHECK(why(1) ==
        "killed by SIGKILL (out of memory? The kernel counts 1 OOM kill on this machine since the "
        "epoch began)");
  CHECK_THAT(why(2), Catch::Contains("counts 2 OOM kills"));
}

TEST_CASE("the kernel's count tells of a process of the worker's, too") {
  const auto verdict = [](int exit_code, std::optional<int64_t> memory_kills, bool lost_child) {
    return ClassifyExit(
        {.exit_code = exit_code, .memory_kills = memory_kills, .lost_child = lost_child},
        /*in_session=*/false);
  };
  CHECK_THAT(verdict(137, 1, false).why,
             Catch::StartsWith("exit code 137 (a shell's word for SIGKILL, out of memory? The "
                               "kernel counts 1 OOM kill"));
  CHECK(verdict(137, 0, false).why ==
        "exit code 137 (a shell's word for SIGKILL, not by the kernel's OOM killer)");
  CHECK(verdict(143, 1, false).why == "exit code 143 (a shell's word for SIGTERM)");
  CHECK(verdict(1, 1, false).why == "exit code 1");
  CHECK_THAT(verdict(1, 1, true).why,
             Catch::StartsWith("exit code 1 (a process of its was killed by SIGKILL, out of "
                               "memory? The kernel counts 1 OOM kill"));
  CHECK_THAT(verdict(1, 1, true).next_step, Catch::Contains("dmesg -T"));
  CHECK_THAT(verdict(137, 0, false).next_step, !Catch::Contains("dmesg"));
  CHECK(SayLostChild({"DataLoader worker (pid 9) is killed by signal: Killed. "}));
  CHECK_FALSE(SayLostChild({"DataLoader worker (pid 9) is killed by signal: Aborted. "}));
}

TEST_CASE("only a worker in session means bad usage by 64") {
  const ExitVerdict verdict = ClassifyExit({64, 0}, /*in_session=*/true);
  CHECK(verdict.kind == ExitKind::kFailed);
  CHECK(verdict.is_final);
  CHECK(verdict.why == "exit code 64 (bad usage)");
  CHECK_FALSE(ClassifyExit({64, 0}, /*in_session=*/false).is_final);
  CHECK(ClassifyExit({71, 0}, /*in_session=*/true).is_final);
  CHECK_FALSE(ClassifyExit({71, 0}, /*in_session=*/false).is_final);
  CHECK_FALSE(ClassifyExit({1, 0}, /*in_session=*/true).is_final);
}

TEST_CASE("a death by a signal is told by the kernel or by a shell") {
  CHECK(IsDeathOf(SIGTERM, {0, SIGTERM}));
  CHECK(IsDeathOf(SIGTERM, {143, 0}));
  CHECK_FALSE(IsDeathOf(SIGTERM, {0, SIGKILL}));
  CHECK_FALSE(IsDeathOf(SIGTERM, {0, 0}));
  CHECK_FALSE(IsDeathOf(SIGTERM, {1, 0}));
}

TEST_CASE("a foreign program may answer a signal with any code, but not with a crash") {
  CHECK(IsAnswerTo(SIGTERM, {3, 0}, /*in_session=*/false));
  CHECK_FALSE(IsAnswerTo(SIGTERM, {3, 0}, /*in_session=*/true));
  for (const bool in_session : {false, true}) {
    CHECK(IsAnswerTo(SIGTERM, {0, SIGTERM}, in_session));
    CHECK(IsAnswerTo(SIGTERM, {75, 0}, in_session));
    CHECK_FALSE(IsAnswerTo(SIGTERM, {0, SIGSEGV}, in_session));
  }
}

}  // namespace
}  // namespace convene::agent

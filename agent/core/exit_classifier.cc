#include "agent/core/exit_classifier.h"

#include <csignal>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "rendezvous/quorum/kernel_words.h"
#include "tools/base/exit_code.h"
#include "tools/base/signal_names.h"

namespace convene::agent {
namespace {

using rendezvous::kByKernel;
using rendezvous::kNotForMemory;

std::string NextStepAfterSignal(int signal, bool is_for_memory) {
  switch (signal) {
    case SIGKILL:
      if (!is_for_memory) {
        return "The scheduler or a person sends SIGKILL: look at the scheduler's log of this node "
               "and its limits.";
      }
      return "The kernel, the scheduler or a person sends SIGKILL. To see who did: `dmesg -T` "
             "(\"Out of memory\"), the cgroup's memory.events, the scheduler's log and its "
             "memory limit.";
    case SIGBUS:
      return "A bus error is often a full /dev/shm or a data file that was truncated under its "
             "reader: look at `df /dev/shm`.";
    case SIGSEGV:
    case SIGABRT:
    case SIGFPE:
      return "The program crashed: look at its last lines, and at `coredumpctl` or the core file "
             "for the stack.";
    case SIGILL:
      return "The program was built for another processor: compare the node's `lscpu` with the "
             "others'.";
    case SIGTERM:
    case SIGINT:
    case SIGHUP:
      return "Somebody outside the job ended this worker: look at the scheduler's log of this "
             "node.";
    default:
      return "Look at the worker's last lines and at `dmesg -T` on that node.";
  }
}

std::string WhyKilled(std::optional<int64_t> memory_kills) {
  if (!memory_kills.has_value()) return "out of memory?";
  if (*memory_kills <= 0) return kNotForMemory;
  return absl::StrCat("out of memory? ", kByKernel, " ", *memory_kills,
                      *memory_kills == 1 ? " OOM kill" : " OOM kills",
                      " on this machine since the epoch began");
}

}  // namespace

ExitVerdict ClassifyExit(const ExitStatus& status, bool in_session) {
  ExitVerdict verdict;
  const std::string why_killed = WhyKilled(status.memory_kills);
  const bool is_for_memory = why_killed != kNotForMemory;
  if (status.signal != 0) {
    verdict.why = absl::StrCat("killed by ", SignalName(status.signal),
                               status.signal == SIGKILL ? absl::StrCat(" (", why_killed, ")") : "",
                               status.core_dumped ? " (core dumped)" : "");
    verdict.next_step = NextStepAfterSignal(status.signal, is_for_memory);
    return verdict;
  }
  const int code = status.exit_code;
  verdict.why = absl::StrCat("exit code ", code);
  if (code == static_cast<int>(ExitCode::kOk)) {
    verdict.kind = ExitKind::kSucceeded;
    verdict.costs_budget = false;
  } else if (code == static_cast<int>(ExitCode::kMembershipChanged) && in_session) {
    verdict.kind = ExitKind::kMembershipChanged;
    verdict.costs_budget = false;
    absl::StrAppend(&verdict.why, " (membership changed)");
    verdict.next_step =
        "The worker asked to be started again: look at the node that left, or, when none did, at "
        "the worker's last lines.";
  } else if (code == static_cast<int>(ExitCode::kSuspectDevice) && in_session) {
    absl::StrAppend(&verdict.why, kSuspectDevice);
    verdict.next_step =
        "The same input gave a rejected result twice: run a device check on that node before it "
        "gets work again.";
  } else if (code == static_cast<int>(ExitCode::kUsage) && in_session) {
    verdict.is_final = true;
    absl::StrAppend(&verdict.why, " (bad usage)");
    verdict.next_step = "Mend what its last lines name, and start again.";
  } else if (code == static_cast<int>(ExitCode::kUnfitNode) && in_session) {
    verdict.is_final = true;
    absl::StrAppend(&verdict.why, " (unfit node)");
    verdict.next_step = "Mend what its findings name, or leave the node out, and start again.";
  } else if (code == 127 || code == 126) {
    absl::StrAppend(&verdict.why,
                    code == 127 ? " (program or library not found)" : " (program not executable)");
    verdict.next_step =
        "A shell and the loader give this code when they cannot run a program: check its path, its "
        "mode and its libraries (ldd) on that node.";
  } else if (code > 128 && code < 128 + 65) {
    const bool is_known = code == 128 + SIGKILL && status.memory_kills.has_value();
    absl::StrAppend(&verdict.why, " (a shell's word for ", SignalName(code - 128),
                    is_known ? absl::StrCat(", ", why_killed) : "", ")");
    verdict.next_step = NextStepAfterSignal(code - 128, is_for_memory);
  } else if (status.lost_child) {
    absl::StrAppend(&verdict.why, " (a process of its was killed by SIGKILL, ", why_killed, ")");
    verdict.next_step = NextStepAfterSignal(SIGKILL, is_for_memory);
  } else {
    verdict.next_step = "Look at the worker's last lines for the first error.";
  }
  return verdict;
}

bool SayLostChild(const std::vector<std::string>& last_lines) {
  return absl::c_any_of(last_lines, [](const std::string& line) {
    return absl::StrContains(line, rendezvous::kKilledChild);
  });
}

bool IsDeathOf(int signal, const ExitStatus& status) {
  return status.signal != 0 ? status.signal == signal : status.exit_code == 128 + signal;
}

bool IsAnswerTo(int signal, const ExitStatus& status, bool in_session) {
  if (status.signal != 0) return status.signal == signal;
  return !in_session || status.exit_code == static_cast<int>(ExitCode::kOk) ||
         status.exit_code == static_cast<int>(ExitCode::kMembershipChanged) ||
         IsDeathOf(signal, status);
}

}  // namespace convene::agent

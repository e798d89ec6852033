// PURE. Classifies the ends of workers.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace convene::agent {

// How a process ended, as waitid tells it.
struct ExitStatus {
  int exit_code = 0;  // valid when signal is 0
  int signal = 0;     // 0: it exited by itself
  bool core_dumped = false;
  // The number of processes on this machine that the kernel has killed for want of memory since the
  // epoch began; nullopt: the kernel does not say.
  std::optional<int64_t> memory_kills = std::nullopt;
  bool lost_child = false;  // its last lines say that a process of its was killed by SIGKILL
};

enum class ExitKind {
  kSucceeded,          // code 0
  kMembershipChanged,  // code 75 of a session: the worker asks to be started again
  kFailed,             // by any other code, or by a signal
};

// In ExitVerdict::why, of code 76 of a session.
inline constexpr char kSuspectDevice[] = " (suspect device)";

struct ExitVerdict {
  ExitKind kind = ExitKind::kFailed;
  bool costs_budget = true;  // counts against --max-restarts
  bool is_final = false;     // a restart would end the same way
  std::string why;           // one line: "exit code 3", "killed by SIGSEGV (core dumped)"
  std::string next_step;     // what the person should look at; one sentence
};

// `in_session`: the worker opened its session, so its exit codes are those of
// tools/base/exit_code.h. A foreign program may mean something else by 64, 71, 75 or 76 (sysexits.h
// calls 75 a failure that passes, which a worker may repeat for ever).
ExitVerdict ClassifyExit(const ExitStatus& status, bool in_session);

// Whether a worker's last lines say that a process of its was killed by SIGKILL: PyTorch's
// DataLoader says so, and the worker ends with 1.
bool SayLostChild(const std::vector<std::string>& last_lines);

// Whether `status` is the usual end of a process that does not handle `signal`: the signal killed
// the process, or, where a shell ran it, the exit code is 128 + signal.
bool IsDeathOf(int signal, const ExitStatus& status);

// Whether `status` is a proper answer to `signal`, sent to the worker: death by it, a shell's 128 +
// signal, 0, or 75. A foreign program may answer with any exit code.
bool IsAnswerTo(int signal, const ExitStatus& status, bool in_session);

}  // namespace convene::agent

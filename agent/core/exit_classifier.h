// PURE. What a worker's end means.
#pragma once

#include <string>

namespace convene::agent {

// How a process ended, as waitid tells it.
struct ExitStatus {
  int exit_code = 0;  // valid when signal is 0
  int signal = 0;     // 0: it exited by itself
  bool core_dumped = false;
};

enum class ExitKind {
  kSucceeded,          // code 0
  kMembershipChanged,  // code 75: the worker asks to be started again
  kSuspectDevice,      // code 76: its result was rejected twice on the same input
  kNotRunnable,        // codes 126 and 127: a shell could not run the program
  kKilled,             // ended by a signal
  kFailed,             // any other code
};

struct ExitVerdict {
  ExitKind kind = ExitKind::kFailed;
  bool costs_budget = true;  // counts against --max-restarts
  std::string why;           // one line: "exit code 3", "killed by SIGKILL (out of memory?)"
  std::string next_step;     // what the person should look at; one sentence
};

ExitVerdict ClassifyExit(const ExitStatus& status);

// Whether `status` is what `signal`, sent to the worker, asks for: death by it, a shell's 128 +
// signal, 0, or 75.
bool IsAnswerTo(int signal, const ExitStatus& status);

// The same words for a failure that came over the wire.
ExitVerdict ClassifyExit(int exit_code, int signal);

// "SIGKILL", or "signal 77" for one without a name.
std::string SignalName(int signal);

}  // namespace convene::agent

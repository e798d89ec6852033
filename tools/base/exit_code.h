// The exit codes of every Convene program: one table (README.md of this folder explains each).
#pragma once

#include <functional>
#include <string>

#include "absl/status/status.h"

namespace convene {

enum class ExitCode : int {
  kOk = 0,              // every worker of the last epoch ended with 0
  kTrainingFailed = 1,  // training failed and the restart budget is spent
  kUsage = 64,          // a flag, a file or a configuration is wrong; nothing was started
  kUnavailable = 69,    // the rendezvous could not be reached, or closed, within its deadline
  kInternal = 70,       // a bug in Convene
  kUnfitNode = 71,      // preflight or health check failed: the scheduler should drain this node
  kMembershipChanged = 75,  // worker to agent only: start me again, costs no restart budget
  kSuspectDevice = 76,      // worker to agent only: my result was rejected twice on the same input
};

// 128 + signal: the command itself was ended by a signal after an orderly stop.
int ExitCodeForSignal(int signal_number);

// The exit code of a program whose main() ends with `status`: InvalidArgument, NotFound,
// FailedPrecondition, PermissionDenied, AlreadyExists and OutOfRange: kUsage; Unavailable and
// DeadlineExceeded: kUnavailable; Aborted: kMembershipChanged; Internal: kInternal; everything else
// kTrainingFailed.
ExitCode ExitCodeForStatus(const absl::Status& status);

// Runs `body` and returns main()'s exit code. An exception that nothing caught becomes a line on
// stderr: kUnfitNode where memory or threads ran out, else kInternal.
int ExitCodeOfMain(const char* program, const std::function<int()>& body);

// For a process whose memory other threads and devices still write to: an exception that nobody
// catches runs no destructor. The same line goes to stderr, and the process ends with `no_room`
// where memory or threads ran out, else with kInternal. Call from main, once.
void EndAtExceptions(const char* program, ExitCode no_room);

// The table as text, a row a code: what `--help-exit-codes` prints.
std::string ExitCodeTable();

}  // namespace convene

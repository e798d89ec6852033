#include "tools/base/exit_code.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <new>
#include <system_error>

namespace convene {
namespace {

const char* g_program = nullptr;
ExitCode g_no_room = ExitCode::kUnfitNode;

// Of the exception at hand: its line on stderr, and its exit code.
int TellException(const char* program, ExitCode no_room) {
  try {
    throw;
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "%s: this node has no memory left for this process\n", program);
    return static_cast<int>(no_room);
  } catch (const std::exception& error) {
    const auto* system = dynamic_cast<const std::system_error*>(&error);
    if (system != nullptr && system->code() == std::errc::resource_unavailable_try_again) {
      std::fprintf(stderr, "%s: this node has no thread left for this process: %s\n", program,
                   error.what());
      return static_cast<int>(no_room);
    }
    std::fprintf(stderr, "%s: a bug in Convene, please report it: %s\n", program, error.what());
    return static_cast<int>(ExitCode::kInternal);
  }
}

}  // namespace

int ExitCodeForSignal(int signal_number) { return 128 + signal_number; }

ExitCode ExitCodeForStatus(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return ExitCode::kOk;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kUnimplemented:
      return ExitCode::kUsage;
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
      return ExitCode::kUnavailable;
    case absl::StatusCode::kAborted:
      return ExitCode::kMembershipChanged;
    case absl::StatusCode::kInternal:
      return ExitCode::kInternal;
    default:
      return ExitCode::kTrainingFailed;
  }
}

int ExitCodeOfMain(const char* program, const std::function<int()>& body) {
  try {
    return body();
  } catch (...) {
    return TellException(program, ExitCode::kUnfitNode);
  }
}

void EndAtExceptions(const char* program, ExitCode no_room) {
  g_program = program;
  g_no_room = no_room;
  std::set_terminate([] {
    if (std::current_exception() == nullptr) std::abort();
    _exit(TellException(g_program, g_no_room));
  });
}

std::string ExitCodeTable() {
  return "code   meaning (who acts on it)\n"
         "0      every worker of the last epoch ended with 0 (the scheduler)\n"
         "1      training failed and the restart budget is spent; the first failure's rank, host, "
         "signal or code, and last log lines were printed (the scheduler)\n"
         "64     bad usage: a flag, a file or a configuration is wrong; nothing was started (the "
         "person)\n"
         "69     the rendezvous could not be reached, or closed, within its deadline (the "
         "scheduler: try again)\n"
         "70     an internal error of Convene: a bug, please report (us)\n"
         "71     this node is unfit (preflight or health check failed): the scheduler should drain "
         "it (the scheduler)\n"
         "75     worker in a session to agent only: membership changed, start me again (costs no "
         "restart budget) (the agent)\n"
         "76     worker in a session to agent only: my result was rejected twice on the same "
         "input, suspect this device (the agent)\n"
         "128+n  the command itself was ended by signal n after an orderly stop (TERM: 143, INT: "
         "130) (the scheduler)\n";
}

}  // namespace convene

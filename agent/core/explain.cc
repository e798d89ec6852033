#include "agent/core/explain.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "agent/core/exit_classifier.h"
#include "rendezvous/quorum/kernel_words.h"
#include "tools/base/exit_code.h"
#include "tools/base/signal_names.h"

namespace convene::agent {
namespace {

using rendezvous::Outcome;

Result Make(ExitCode code, std::string explanation) {
  return Result{static_cast<int>(code), std::move(explanation)};
}

std::string DescribeFailure(const rendezvous::WorkerFailure& failure) {
  ExitStatus status = {.exit_code = failure.exit_code,
                       .signal = failure.signal,
                       .lost_child = SayLostChild(failure.last_log_lines)};
  if (absl::StrContains(failure.why, rendezvous::kNotForMemory)) status.memory_kills = 0;
  // Only a session's exit codes have such a meaning.
  const bool in_session =
      failure.is_final || !failure.costs_budget || absl::StrContains(failure.why, kSuspectDevice);
  const ExitVerdict verdict = ClassifyExit(status, in_session);
  std::string text = absl::StrCat("rank ", failure.global_rank, " (local rank ", failure.local_rank,
                                  ", pid ", failure.pid, ") on ", failure.host, ": ",
                                  failure.why.empty() ? verdict.why : failure.why, ".");
  if (!failure.error_lines.empty()) {
    absl::StrAppend(&text, " Its error file", failure.error_file.empty() ? "" : " ",
                    failure.error_file, " says:\n  ", absl::StrJoin(failure.error_lines, "\n  "));
  }
  absl::StrAppend(&text, failure.error_lines.empty() ? " " : "\n", verdict.next_step);
  if (!failure.kernel_lines.empty()) {
    absl::StrAppend(&text, " The kernel says:\n  ", absl::StrJoin(failure.kernel_lines, "\n  "),
                    "\n");
  } else {
    text += " ";
  }
  if (failure.last_log_lines.empty()) {
    absl::StrAppend(&text, "It had printed nothing.");
  } else {
    absl::StrAppend(&text, "Its last lines:\n  ", absl::StrJoin(failure.last_log_lines, "\n  "));
  }
  return text;
}

int ExitCodeOf(const rendezvous::WorkerFailure& failure, bool propagate) {
  if (propagate && failure.signal != 0) return ExitCodeForSignal(failure.signal);
  if (propagate && failure.exit_code != 0) return failure.exit_code;
  if (!failure.is_final) return static_cast<int>(ExitCode::kTrainingFailed);
  const bool is_unfit = failure.exit_code == static_cast<int>(ExitCode::kUnfitNode);
  return static_cast<int>(is_unfit ? ExitCode::kUnfitNode : ExitCode::kUsage);
}

}  // namespace

Result WithFailure(Result result, const std::optional<rendezvous::WorkerFailure>& failure) {
  if (!failure.has_value() || result.exit_code == static_cast<int>(ExitCode::kOk)) return result;
  // Where the text ends with a worker's last lines, these would run on.
  const bool has_lines = absl::StrContains(result.explanation, "\n");
  absl::StrAppend(&result.explanation, has_lines ? "\n" : " ",
                  "An earlier failure: ", DescribeFailure(*failure));
  result.failure = failure;
  return result;
}

Result WithStops(Result result, const std::map<Epoch, std::string>& stops) {
  if (result.exit_code == static_cast<int>(ExitCode::kOk)) return result;
  const char* separator = absl::StrContains(result.explanation, "\n") ? "\n" : " ";
  for (const auto& [epoch, why] : stops) {
    absl::StrAppend(&result.explanation, separator, "Epoch ", epoch.value(), " was stopped: ", why,
                    ".");
    separator = " ";
  }
  return result;
}

Result WithLogs(Result result, const std::string& folder) {
  if (result.exit_code == static_cast<int>(ExitCode::kOk)) return result;
  absl::StrAppend(&result.explanation, "\nThe log files of this node's workers are in ", folder);
  return result;
}

Result ResultOfClose(const rendezvous::Close& close, const std::string& job_id, bool propagate,
                     Epoch epoch) {
  switch (close.outcome) {
    case Outcome::kSucceeded:
      return Result{};
    case Outcome::kTimedOut:
      return Make(
          ExitCode::kUnavailable,
          absl::StrCat(
              "Job ", job_id, " was closed: ", close.why,
              ". Start the missing nodes with the same job id and endpoint, or lower --nnodes."));
    case Outcome::kLeft:
      return Make(ExitCode::kUnavailable,
                  absl::StrCat("This node left job ", job_id, ": ", close.why));
    case Outcome::kFailed:
      break;
  }
  std::string text = absl::StrCat("Job ", job_id, " failed: ", close.why, ".");
  if (!close.first_failure.has_value()) return Make(ExitCode::kTrainingFailed, text);
  // Of an earlier epoch's failure close.why tells, where it was another one.
  absl::StrAppend(&text, " The first failure",
                  epoch > Epoch(1) ? absl::StrCat(" of epoch ", epoch.value()) : "", " was ",
                  DescribeFailure(*close.first_failure));
  return Result{ExitCodeOf(*close.first_failure, propagate), text, close.first_failure};
}

Result ResultOfStream(const absl::Status& status, const std::string& endpoint) {
  if (absl::IsAborted(status)) {
    return Make(
        ExitCode::kTrainingFailed,
        absl::StrCat("Another process took this node's place in the job: ", status.message(),
                     ". If two commands run for one node, stop one of them."));
  }
  return Make(ExitCodeForStatus(status), absl::StrCat("The rendezvous at ", endpoint,
                                                      " refused this node: ", status.message()));
}

Result ResultOfSilence(const absl::Status& last, const std::string& endpoint, absl::Duration waited,
                       const std::optional<std::string>& loss) {
  return Make(
      ExitCode::kUnavailable,
      absl::StrCat("The rendezvous at ", endpoint,
                   loss.has_value()
                       ? absl::StrCat(" was lost (", *loss, ") and did not come back within ")
                   : absl::IsAlreadyExists(last) ? " did not let this node in within "
                                                 : " could not be reached within ",
                   absl::FormatDuration(waited), ": ", last.message(),
                   ". Check that its host is up, that the port is open between the nodes, and that "
                   "--rdzv-endpoint names the same place everywhere."));
}

Result ResultOfSignal(int signal, absl::string_view how) {
  return Result{ExitCodeForSignal(signal),
                absl::StrCat("Stopped by ", SignalName(signal), ": ", how, ".")};
}

Result ResultOfSpawnFailure(const absl::Status& status) {
  if (absl::IsNotFound(status) || absl::IsPermissionDenied(status) ||
      absl::IsInvalidArgument(status)) {
    return Make(ExitCode::kUsage, std::string(status.message()));
  }
  return Make(ExitCode::kUnfitNode,
              absl::StrCat("This node cannot start the workers: ", status.message(),
                           ". Look at `ulimit -a`, the cgroup's pids.max and the free memory."));
}

Result ResultOfStoreFailure(const absl::Status& status) {
  return Make(absl::IsResourceExhausted(status) ? ExitCode::kUnfitNode : ExitCodeForStatus(status),
              absl::StrCat("The job's store cannot start here: ", status.message(),
                           absl::IsAlreadyExists(status)
                               ? ". Another program has this port (`ss -ltnp` names it): stop that "
                                 "program, or give another --master-port, or none for any free port"
                               : ""));
}

Result ResultOfTimerFile(const absl::Status& status) {
  return Make(
      ExitCode::kUsage,
      absl::StrCat("TORCHELASTIC_ENABLE_FILE_TIMER is set, but ", std::string(status.message()),
                   ". Name another path in TORCHELASTIC_TIMER_FILE, or leave it unset."));
}

Result ResultOfHealthCheck(const std::string& host, const absl::Status& status) {
  return Make(ExitCode::kUnfitNode,
              absl::StrCat(host, " is unfit and leaves the job: ", std::string(status.message())));
}

Result ResultOfUndeadWorkers(const std::string& host, absl::Duration waited) {
  return Make(ExitCode::kUnfitNode,
              absl::StrCat("Workers on ", host, " are still there ", absl::FormatDuration(waited),
                           " after SIGKILL: they hang in the kernel (state D in `ps`), usually on "
                           "a device or a network "
                           "file system. Drain this node."));
}

}  // namespace convene::agent

#include "agent/workers/health_check.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "agent/output/last_lines.h"
#include "tools/base/signal_names.h"

namespace convene::agent {
namespace {

constexpr size_t kBytesKept = 16384;

absl::Status Verdict(const HealthCheck& check, const BoundedCommand::Outcome& outcome) {
  if (!outcome.timed_out && outcome.status.signal == 0 && outcome.status.exit_code == 0) {
    return absl::OkStatus();
  }
  std::string how = absl::StrCat("ended with exit code ", outcome.status.exit_code);
  if (outcome.status.signal != 0) {
    how = absl::StrCat("was killed by ", SignalName(outcome.status.signal));
  }
  if (outcome.timed_out) {
    how = absl::StrCat("did not end within ", absl::FormatDuration(check.timeout));
  }
  // The text goes over the wire: bounded, and UTF-8 whatever was printed.
  LastLines command;
  command.Add(check.command);
  LastLines printed;
  for (const absl::string_view line : absl::StrSplit(outcome.output, '\n', absl::SkipEmpty())) {
    printed.Add(line);
  }
  const std::vector<std::string> lines = printed.Get();
  return absl::FailedPreconditionError(absl::StrCat(
      "the health check `", command.Get().front(), "` ", how, ". ",
      lines.empty() ? "It printed nothing."
                    : absl::StrCat("Its last lines:\n  ", absl::StrJoin(lines, "\n  "))));
}

}  // namespace

absl::StatusOr<std::unique_ptr<BoundedCommand>> StartHealthCheck(
    EventLoop& loop, const HealthCheck& check, const std::vector<std::string>& environment,
    std::function<void(absl::Status)> on_done) {
  BoundedCommand::Request request;
  request.spawn.arguments = check.program;
  if (check.program.empty()) request.spawn.arguments = {"/bin/sh", "-c", check.command};
  request.spawn.program = request.spawn.arguments[0];
  request.spawn.environment = environment;
  request.timeout = check.timeout;
  request.last_bytes = kBytesKept;
  return BoundedCommand::Start(
      loop, request, [check, on_done = std::move(on_done)](const BoundedCommand::Outcome& outcome) {
        on_done(Verdict(check, outcome));
      });
}

}  // namespace convene::agent

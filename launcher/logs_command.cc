#include <unistd.h>

#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "launcher/commands.h"
#include "launcher/logs_view.h"
#include "launcher/print.h"
#include "rendezvous/client/ask_in_turn.h"
#include "rendezvous/client/log_client.h"
#include "tools/base/backoff.h"
#include "tools/base/clock.h"
#include "tools/base/exit_code.h"
#include "tools/base/random.h"
#include "tools/base/status_macros.h"

namespace convene::launcher {
namespace {

using rendezvous::LogClient;

constexpr absl::Duration kConnectTimeout = absl::Seconds(5);
// The wait for a daemon that has gone away.
constexpr absl::Duration kReturnPatience = absl::Seconds(60);

// Prints in order. Print's errors for the lines; a remark that stderr does not take is no error.
absl::Status PrintAll(LogsView* view) {
  for (const LogsView::Chunk& chunk : view->TakeChunks()) {
    if (chunk.is_notice) {
      std::fputs(chunk.text.c_str(), stderr);
    } else {
      CONVENE_RETURN_IF_ERROR(Print(chunk.text));
    }
  }
  return absl::OkStatus();
}

// Shows one call's lines: OK when all are shown; else the call's error, or Print's.
absl::Status Show(LogClient* client, LogsView* view) {
  while (!view->done()) {
    absl::StatusOr<std::optional<LogClient::News>> news = client->Next(view->deadline());
    CONVENE_RETURN_IF_ERROR(news.status());
    const MonotonicTime now = Clock::Real().Now();
    if (news->has_value()) {
      view->Take(now, **std::move(news));
    } else if (view->has_started()) {
      view->OnTime(now);
    } else {
      return absl::UnavailableError("the rendezvous takes the connection but does not answer");
    }
    CONVENE_RETURN_IF_ERROR(PrintAll(view));
  }
  return absl::OkStatus();
}

absl::Status Connect(const rendezvous::Endpoint& endpoint, rendezvous::LogRequest request,
                     absl::Duration patience, LogsView* view) {
  absl::Status shown;
  const auto show = [&](const rendezvous::Endpoint& each, absl::Duration share) {
    request.seen = view->seen();
    const absl::StatusOr<std::unique_ptr<LogClient>> client = LogClient::Open(each, request, share);
    view->Begin(Clock::Real().Now());
    if (!client.ok()) return client.status();
    shown = Show(client->get(), view);
    if (!shown.ok()) view->Break();
    const absl::Status printed = PrintAll(view);
    if (shown.ok()) shown = printed;
    // A daemon that has begun to answer is the one that was sought.
    return view->has_started() ? absl::OkStatus() : shown;
  };
  CONVENE_RETURN_IF_ERROR(rendezvous::AskInTurn(endpoint, patience, show));
  return shown;
}

void Tell(const absl::Status& status, const char* what_next) {
  std::fprintf(stderr, "convene: %s%s\n", std::string(status.message()).c_str(), what_next);
}

// Shows lines until the run is over; waits for a daemon that goes away meanwhile.
absl::Status Follow(const rendezvous::Endpoint& endpoint, const rendezvous::LogRequest& request,
                    LogsView* view) {
  absl::Status status = Connect(endpoint, request, kConnectTimeout, view);
  if (!view->has_started()) return status;
  MonotonicTime give_up_at;
  std::optional<Backoff> backoff;
  while (!status.ok() && !view->done()) {
    if (absl::IsFailedPrecondition(status)) {
      Tell(status, "");  // It ended meanwhile.
      return absl::OkStatus();
    }
    // A daemon without a journal must first hear of the run again.
    if (!absl::IsUnavailable(status) && !absl::IsNotFound(status)) return status;
    const MonotonicTime now = Clock::Real().Now();
    if (view->has_started()) {
      Tell(status, "; waiting for it");
      give_up_at = now + kReturnPatience;
      backoff.emplace(absl::Milliseconds(100), absl::Seconds(2));
    }
    if (now >= give_up_at) return status;
    Clock::Real().SleepFor(backoff->Next(RandomFraction()));
    status = Connect(endpoint, request, give_up_at - Clock::Real().Now(), view);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<int> LogsCommand(const LogsFlags& flags) {
  const rendezvous::Endpoint endpoint(flags.endpoint, flags.credentials);
  LogsView view({flags.request.job_id, flags.request.follow, flags.json, flags.prefix_template,
                 /*to_terminal=*/isatty(STDOUT_FILENO) == 1});
  CONVENE_RETURN_IF_ERROR(flags.request.follow
                              ? Follow(endpoint, flags.request, &view)
                              : Connect(endpoint, flags.request, kConnectTimeout, &view));
  return static_cast<int>(ExitCode::kOk);
}

}  // namespace convene::launcher

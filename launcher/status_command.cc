#include <signal.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "launcher/commands.h"
#include "launcher/print.h"
#include "rendezvous/client/ask_in_turn.h"
#include "rendezvous/client/status_client.h"
#include "rendezvous/web/status_text.h"
#include "rendezvous/wire/status_json.h"
#include "tools/base/exit_code.h"
#include "tools/base/signals.h"
#include "tools/base/status_macros.h"

namespace convene::launcher {
namespace {

using rendezvous::JobView;
using rendezvous::StatusChanges;
using rendezvous::StatusText;

constexpr absl::Duration kTimeout = absl::Seconds(5);
constexpr time_t kWatchSeconds = 1;
// The lines of a screen that stay free for a job's lines beside its nodes.
constexpr size_t kOtherLines = 23;
// To the upper left, and clear what is below.
constexpr char kRedraw[] = "\x1b[H\x1b[2J";

size_t NodesThatFit() {
  winsize size = {};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_row == 0) return SIZE_MAX;
  return std::max<size_t>(size.ws_row, kOtherLines + 5) - kOtherLines;
}

const std::vector<int>& EndingSignals() {
  static const auto* const signals = new std::vector<int>{SIGTERM, SIGINT, SIGHUP, SIGQUIT};
  return *signals;
}

// The signal that ends the process, when one comes within the pause. REQUIRES: they are blocked.
std::optional<int> SignalWithinPause() {
  const sigset_t ending = SignalSet(EndingSignals());
  const timespec pause = {kWatchSeconds, 0};
  for (;;) {
    const int signal = sigtimedwait(&ending, nullptr, &pause);
    if (signal > 0) return signal;
    if (errno != EINTR) return std::nullopt;
  }
}

// Asks again and again; waits for a daemon that goes away.
class Watch {
 public:
  Watch(rendezvous::Endpoint endpoint, const StatusFlags& flags)
      : endpoint_(std::move(endpoint)), flags_(flags), is_terminal_(isatty(STDOUT_FILENO) == 1) {}

  // REQUIRES: no other thread runs.
  absl::StatusOr<int> Run() {
    BlockSignals(EndingSignals());
    for (bool is_first = true;; is_first = false) {
      const absl::StatusOr<std::vector<JobView>> jobs = Ask();
      // A watched job may still have to begin; an endpoint that never answered is wrong.
      if (!jobs.ok() && is_first && !absl::IsNotFound(jobs.status())) return jobs.status();
      CONVENE_RETURN_IF_ERROR(Show(jobs));
      if (const std::optional<int> signal = SignalWithinPause()) return ExitCodeForSignal(*signal);
    }
  }

 private:
  absl::StatusOr<std::vector<JobView>> Ask() {
    absl::StatusOr<std::vector<JobView>> jobs = absl::UnavailableError("not asked yet");
    const auto ask = [&](absl::Duration timeout) {
      jobs = client_->Fetch(flags_.job_id, timeout);
      if (!jobs.ok() && !absl::IsNotFound(jobs.status())) client_.reset();
      return jobs.status();
    };
    if (client_ != nullptr) {
      ask(kTimeout).IgnoreError();
      return jobs;
    }
    const absl::Status asked = rendezvous::AskInTurn(
        endpoint_, kTimeout, [&](const rendezvous::Endpoint& each, absl::Duration share) {
          auto client = rendezvous::StatusClient::Open(each, share);
          if (!client.ok()) return client.status();
          client_ = *std::move(client);
          return ask(share);
        });
    if (!asked.ok()) return asked;
    return jobs;
  }

  absl::Status Show(const absl::StatusOr<std::vector<JobView>>& jobs) {
    if (!jobs.ok()) return ShowTrouble(std::string(jobs.status().message()));
    trouble_.clear();
    if (flags_.json) return Print(absl::StrCat(rendezvous::StatusJson(*jobs), "\n"));
    if (is_terminal_) return Print(absl::StrCat(kRedraw, StatusText(*jobs, NodesThatFit())));
    std::string text;
    for (const std::string& line : StatusChanges(last_, *jobs)) absl::StrAppend(&text, line, "\n");
    last_ = *jobs;
    return text.empty() ? absl::OkStatus() : Print(text);
  }

  // Shows the trouble once, and not among the JSON.
  absl::Status ShowTrouble(const std::string& trouble) {
    if (trouble == std::exchange(trouble_, trouble)) return absl::OkStatus();
    std::fprintf(stderr, "convene: %s\n", trouble.c_str());
    return absl::OkStatus();
  }

  const rendezvous::Endpoint endpoint_;
  const StatusFlags& flags_;
  const bool is_terminal_;
  std::unique_ptr<rendezvous::StatusClient> client_;
  std::vector<JobView> last_;
  std::string trouble_;
};

}  // namespace

absl::StatusOr<int> StatusCommand(const StatusFlags& flags) {
  if (flags.watch) return Watch({flags.endpoint, flags.credentials}, flags).Run();
  CONVENE_ASSIGN_OR_RETURN(
      const std::vector<JobView> jobs,
      rendezvous::FetchStatus({flags.endpoint, flags.credentials}, flags.job_id, kTimeout));
  CONVENE_RETURN_IF_ERROR(Print(flags.json ? absl::StrCat(rendezvous::StatusJson(jobs), "\n")
                                           : StatusText(jobs, SIZE_MAX)));
  return static_cast<int>(ExitCode::kOk);
}

}  // namespace convene::launcher

#include "rendezvous/server/serve.h"

#include <signal.h>

#include <csignal>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "rendezvous/net/listen.h"
#include "rendezvous/net/port_mark.h"
#include "spdlog/spdlog.h"
#include "tools/base/exit_code.h"
#include "tools/base/exit_deadline.h"
#include "tools/base/host_port.h"
#include "tools/base/resource_limits.h"
#include "tools/base/signal_names.h"
#include "tools/base/signals.h"
#include "tools/base/status_macros.h"

namespace convene::rendezvous {
namespace {

// The server's own threads and gRPC's.
constexpr int kThreads = 16;
constexpr int64_t kLeastFiles = 64;
// A descriptor for each agent's connection, as far as the hard limit goes.
constexpr int64_t kWantedFiles = 65536 + kLeastFiles;
// The streams get 2 s to hear that the daemon stops.
constexpr absl::Duration kStopPatience = absl::Seconds(15);

absl::Status WithAdvice(const absl::Status& status, int port) {
  std::string advice;
  if (!absl::StartsWith(status.message(), kCannotListen)) {
    // An error of the state directory says itself what to do.
  } else if (absl::IsAlreadyExists(status)) {
    advice = absl::StrCat(
        ".\nAnother program listens there, perhaps a convened of yours or of another user on this "
        "machine. See who it is with\n  ss -ltnp 'sport = :",
        port,
        "'\nand either let the jobs use that daemon (--rdzv-endpoint), stop it, or start this one "
        "on another port (--port).");
  } else if (absl::IsPermissionDenied(status)) {
    advice = ".\nPorts below 1024 are the system's; take another one (--port).";
  } else if (absl::IsInvalidArgument(status)) {
    advice =
        ".\nGive an address of this machine (`ip address` lists them), or 0.0.0.0 for all of them "
        "(--host).";
  }
  // A wrong file is a usage error, not a bug of this program.
  const absl::StatusCode code =
      absl::IsDataLoss(status) ? absl::StatusCode::kFailedPrecondition : status.code();
  return absl::Status(code, absl::StrCat(status.message(), advice));
}

}  // namespace

absl::StatusOr<int> ServeUntilSignal(const Server::Options& options) {
  std::vector<int> ending = {SIGTERM, SIGINT, SIGQUIT};
  // Under nohup the daemon outlives the terminal's session.
  if (!IsIgnored(SIGHUP)) ending.push_back(SIGHUP);
  BlockSignals(ending);
  // A write to a file that may not grow fails with an error instead of this signal.
  std::signal(SIGXFSZ, SIG_IGN);
  CONVENE_RETURN_IF_ERROR(EnsureOpenFiles(kLeastFiles, kWantedFiles));
  const absl::Status threads = CheckThreads(kThreads);
  absl::StatusOr<std::unique_ptr<Server>> server = threads.ok() ? Server::Start(options) : threads;
  if (absl::IsResourceExhausted(server.status())) {
    spdlog::error("{}", std::string(server.status().message()));
    return static_cast<int>(ExitCode::kUnfitNode);
  }
  if (!server.ok()) return WithAdvice(server.status(), options.port);
  std::unique_ptr<PortMark> mark;
  if (!options.state_dir.empty()) {
    auto left = PortMark::Leave((*server)->port(), options.state_dir);
    if (left.ok()) {
      mark = *std::move(left);
    } else {
      spdlog::warn(
          "{}: should this daemon be killed, an agent on this machine may serve in its place",
          std::string(left.status().message()));
    }
  }
  spdlog::info("serving the rendezvous on {}", FormatHostPort(options.host, (*server)->port()));
  int signal = 0;
  const sigset_t awaited = SignalSet(ending);
  while (sigwait(&awaited, &signal) != 0) {
  }
  spdlog::info("stopping: {}", SignalName(signal));
  const int exit_code = ExitCodeForSignal(signal);
  const ExitDeadline deadline(kStopPatience, exit_code, "the rendezvous did not stop in time");
  server->reset();
  return exit_code;
}

}  // namespace convene::rendezvous

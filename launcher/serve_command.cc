#include <signal.h>

#include <cerrno>
#include <cstring>

#include "launcher/commands.h"
#include "rendezvous/server/server.h"
#include "spdlog/spdlog.h"
#include "tools/base/exit_code.h"
#include "tools/base/status_macros.h"

namespace convene::launcher {

absl::StatusOr<int> ServeCommand(const ServeFlags& flags) {
  rendezvous::Server::Options options;
  options.host = flags.host;
  options.port = flags.port;
  CONVENE_ASSIGN_OR_RETURN(const auto server, rendezvous::Server::Start(options));
  spdlog::info("serving the rendezvous on {} port {}", flags.host, server->port());
  sigset_t ending;
  sigemptyset(&ending);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGQUIT}) sigaddset(&ending, signal);
  int signal = 0;
  sigwait(&ending, &signal);
  spdlog::info("stopping: {}", strsignal(signal));
  return ExitCodeForSignal(signal);
}

}  // namespace convene::launcher

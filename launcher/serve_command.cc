#include "launcher/commands.h"
#include "rendezvous/server/serve.h"

namespace convene::launcher {

absl::StatusOr<int> ServeCommand(const ServeFlags& flags) {
  rendezvous::Server::Options options;
  options.host = flags.host;
  options.port = flags.port;
  options.state_dir = flags.state_dir;
  return rendezvous::ServeUntilSignal(options);
}

}  // namespace convene::launcher

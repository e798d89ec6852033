// The rendezvous as a program's only work.
#pragma once

#include "absl/status/statusor.h"
#include "rendezvous/server/server.h"

namespace convene::rendezvous {

// Serves until SIGTERM, SIGINT, SIGHUP or SIGQUIT, and returns the program's exit code. Errors:
// Server::Start's, with advice in terms of --host and --port; InvalidArgument when this process's
// limits leave no room for descriptors or threads. Call it from the main thread before others are
// started: the signals are blocked in all later threads.
absl::StatusOr<int> ServeUntilSignal(const Server::Options& options);

}  // namespace convene::rendezvous

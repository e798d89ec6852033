// The rendezvous as a program's only work.
#pragma once

#include "absl/status/statusor.h"
#include "rendezvous/server/server.h"

namespace convene::rendezvous {

// Serves until SIGTERM, SIGINT, SIGHUP or SIGQUIT, and returns the program's exit code. An
// error is Server::Start's, with what to do about it in the words of --host and --port, or
// InvalidArgument when this process's limits leave no room for descriptors or threads. Call from
// the main thread before others are started: the signals are blocked in all that follow.
absl::StatusOr<int> ServeUntilSignal(const Server::Options& options);

}  // namespace convene::rendezvous

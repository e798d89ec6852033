// The rendezvous as a program's only work.
#pragma once

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "rendezvous/etcd/place.h"
#include "rendezvous/server/server.h"

namespace convene::rendezvous {

// Serves until SIGTERM, SIGINT, SIGHUP or SIGQUIT, and returns the program's exit code. Errors:
// Server::Start's, with advice in terms of --host and --port; InvalidArgument when this process's
// limits leave no room for descriptors or threads. Call it from the main thread before others are
// started: the signals are blocked in all later threads.
absl::StatusOr<int> ServeUntilSignal(const Server::Options& options);

// The same for one of several daemons that share the journal at `place`: it stands by, without its
// port, until no other daemon leads; serves while it leads; then reads the files of `tls` again, as
// soon as it can, and stands by again. Further errors: etcd::Client's of these files at the start;
// Unavailable when no member of etcd answers within 10 s of the start; FailedPrecondition when a
// program there is no etcd that we can use, or when the journal makes no sense.
absl::StatusOr<int> ServeInTurn(const Server::Options& options, const etcd::Place& place,
                                const etcd::TlsFiles& tls, absl::Duration lease);

// One of several daemons that take turns with options.state_dir, a folder that all of them reach:
// it stands by, without its port, until it gets the folder's lock; serves until it finds that
// another daemon has taken over, or cannot tell for FileJournal::kMostBlind; then stands by again.
// Once it has looked into the folder, it waits while it cannot read that folder, and while another
// one stands in its place. Errors as ServeUntilSignal's.
absl::StatusOr<int> ServeByLock(const Server::Options& options);

}  // namespace convene::rendezvous

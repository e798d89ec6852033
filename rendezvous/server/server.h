// The rendezvous daemon's service, in whatever process hosts it: `convened`, or the launcher of the
// node that owns the endpoint.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "rendezvous/journal/journal.h"
#include "rendezvous/lock/credentials.h"
#include "rendezvous/quorum/job_view.h"
#include "rendezvous/store/store_server.h"
#include "tools/base/clock.h"

namespace convene::rendezvous {

// Serves from the moment Start returns until it is destroyed: streams then end with Unavailable,
// and jobs are handed over (Daemon::Shutdown). Thread-safe.
class Server {
 public:
  // A job that the daemon before has handed over.
  struct HandedOver {
    std::string state;         // HandOver::state; "": none
    MonotonicTime good_until;  // then another daemon may have gone on with the job
  };
  struct Options {
    // Address to bind. 0.0.0.0 and :: are each all addresses, of IPv6 (where there is any) and
    // IPv4.
    std::string host = "0.0.0.0";
    int port = 0;  // 0 = any free one
    Clock* clock = &Clock::Real();
    bool quiet = false;  // logs at debug what the process that hosts it says, too
    // The process that hosts it, for agents that lose it (Daemon::set_served_by); "": a daemon.
    std::string served_by;
    // The one run whose agents may join (Daemon::set_only_run); "": every run's.
    std::string only_run;
    // The journal's directory: a daemon that is killed and started again with it goes on with its
    // jobs. "": nothing is remembered.
    std::string state_dir;
    // This daemon goes on with it. A state that makes no sense is left out, with a warning.
    HandedOver handed_over;
    // Of the daemon's own store: StoreServer::Options::bytes_max.
    size_t store_bytes_max = 0;
    // The daemon has no store of its own: a client that speaks TCPStore is closed, with a line in
    // the log, unless ServeStore has given it another one.
    bool no_store = false;
    // Where they are not empty, the port takes members by TLS alone, HTTP by TLS and a certificate
    // or a password, and TCPStore only from addresses of members. Else anybody may join.
    Credentials credentials;
  };
  // FileJournal::Open's errors when there is a state_dir, TlsPump::Start's with credentials.
  // AlreadyExists when the port is taken (never shared: SO_REUSEPORT is off), InvalidArgument for
  // an address that is not this machine's, ResourceExhausted without threads or descriptors;
  // Unavailable when the port was bound after `handed_over.good_until`.
  static absl::StatusOr<std::unique_ptr<Server>> Start(const Options& options);
  // Goes on with `memory`, whatever `options.state_dir` says.
  static absl::StatusOr<std::unique_ptr<Server>> Start(const Options& options,
                                                       std::optional<Journal::Opened> memory);
  virtual ~Server() = default;

  virtual int port() const = 0;
  // The jobs that are not over and have a node. A job with epoch 0 waits for its first one.
  virtual std::vector<ServedJob> ServedJobs() = 0;
  // This process, the agent of that incarnation, is told to end: no epoch is formed any more that
  // its nodes would have to leave at once, because no daemon goes on with it. That wait has no
  // deadline of its own: the caller destroys the server soon after.
  virtual void EndSoon(Incarnation host) = 0;

  // From now on a client that speaks TCPStore on the port is served by `store`, and no longer by
  // the daemon's own store; with nullptr its connection is closed, and PyTorch's client tries
  // again. With nullopt the daemon's own store serves again. `store` lives until the next call, or
  // longer than the server.
  virtual void ServeStore(std::optional<StoreServer*> store) = 0;
};

}  // namespace convene::rendezvous

// Ways between nodes: a node answers probes, and probes the others.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/doctor.pb.h"
#include "rendezvous/net/listen.h"
#include "tools/base/thread.h"
#include "tools/base/unique_fd.h"

namespace convene::launcher {

// Answers each message of a probe with this machine's wall clock, in the thread "doctor", until it
// is destroyed. A connection that says nothing is closed after two seconds.
class ProbeServer {
 public:
  // At all addresses, at a port that the kernel chooses. Errors: ListenOn's, and of eventfd.
  static absl::StatusOr<std::unique_ptr<ProbeServer>> Start();
  ~ProbeServer();
  ProbeServer(const ProbeServer&) = delete;
  ProbeServer& operator=(const ProbeServer&) = delete;

  int port() const { return listener_.port; }

 private:
  ProbeServer(rendezvous::Listener listener, UniqueFd stop);
  void Serve();

  const rendezvous::Listener listener_;
  const UniqueFd stop_;
  Thread thread_;
};

// Connects to the peer's address, and asks its clock eight times: the quickest answer counts. At
// most `timeout` for each of connection and answers. Never fails: errors are words of the probe.
convene::doctor::v1::PeerProbe ProbePeer(int node, const convene::doctor::v1::NodeReport& peer,
                                         absl::Duration timeout);

// Looks the peer's host name and its address up, for its probe: at most `timeout` for each.
void LookUpNames(const convene::doctor::v1::NodeReport& peer, absl::Duration timeout,
                 convene::doctor::v1::PeerProbe* probe);

}  // namespace convene::launcher

// A gRPC server without a port of its own: it serves connections that somebody else has accepted.
#pragma once

#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "grpcpp/grpcpp.h"
#include "tools/base/mutex.h"
#include "tools/base/unique_fd.h"

namespace convene::rendezvous {

// Thread-safe but for Start and Shutdown.
class GrpcDoor {
 public:
  // ResourceExhausted where gRPC cannot start. At most once; `service` outlives the door.
  absl::Status Start(grpc::Service* service);

  // Serves the connection; closes it before Start and after Close: a connection that gRPC is given
  // while it stops would be left open for ever.
  void Take(UniqueFd connection);
  void Close();

  // REQUIRES: Close was called, and the service's streams are being ended. Returns when all calls
  // are over; at `deadline` those that are left are cut.
  void Shutdown(gpr_timespec deadline);

 private:
  Mutex mutex_;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<grpc::Server> server_;
};

// For a TCP socket: a peer that acknowledges no sent byte for 20 s is gone. gRPC sets that on
// sockets that it accepts itself.
void NoticeDeadPeer(int fd);

}  // namespace convene::rendezvous

// The rendezvous port: accepts connections and tells by their first bytes which server they are
// for.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "tools/base/unique_fd.h"

namespace convene::rendezvous {

enum class Protocol {
  kUndecided,  // these bytes may still begin several protocols
  kGrpc,       // "PRI ", how HTTP/2 begins
  kStore,      // 0x00, the VALIDATE of c10d's TCPStore
  kHttp,       // any other letter: a method
  kTls,        // 0x16, the record of a handshake
  kUnknown,
};

// PURE. Four bytes are always enough.
Protocol ProtocolOf(absl::string_view first_bytes);

// How a connection came. Members within TLS do not come here: they speak gRPC alone.
enum class Origin {
  kPlain,
  kGuest,   // within TLS, from a client that has shown nothing
  kViewer,  // within TLS, from a client with a certificate of the CA
};

// PURE. Why a connection does not get to the server of its protocol; "": it does. `is_locked`: the
// daemon takes members alone.
std::string WhyRefused(Protocol protocol, Origin origin, bool is_locked);

// One thread, "front", from Serve() to the destructor, which closes the port. The front looks at a
// connection's first bytes and leaves them for the server that gets the connection.
class Front {
 public:
  struct Options {
    std::string host;
    int port = 0;
    // A connection whose protocol is unknown after this time is closed.
    absl::Duration silence = absl::Seconds(10);
    // With more such connections than this the oldest of them is closed.
    size_t most_undecided = 1024;
    // Plain connections get to the store and to `tls` alone.
    bool is_locked = false;
  };
  // Each handler gets a non-blocking socket with TCP_NODELAY. Called from the thread; must not
  // block.
  struct Handlers {
    std::function<void(UniqueFd)> grpc;
    std::function<void(UniqueFd)> store;
    std::function<void(UniqueFd, Origin)> http;
    std::function<void(UniqueFd)> tls;  // where the front is locked
  };

  // Binds and listens (statuses: ListenOn()); connections wait until Serve().
  static absl::StatusOr<std::unique_ptr<Front>> Listen(const Options& options);
  virtual ~Front() = default;

  virtual int port() const = 0;
  // Once. ResourceExhausted when the system has no thread left.
  virtual absl::Status Serve(Handlers handlers) = 0;
  // A connection within TLS, non-blocking. Thread-safe; once Serve was called.
  virtual void Adopt(UniqueFd plain, Origin origin) = 0;
};

}  // namespace convene::rendezvous

// Carries the bytes of TLS connections, so that programs that know no TLS speak over them.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "rendezvous/lock/tls_context.h"
#include "tools/base/unique_fd.h"

namespace convene::rendezvous {

// One thread, "tls", from Start to the destructor, which closes every connection. Thread-safe.
class TlsPump {
 public:
  struct Options {
    // A handshake that takes longer is ended.
    absl::Duration handshake_limit = absl::Seconds(10);
    // With more of them under way than this the oldest one is ended, of the address with the most;
    // of all the oldest, where several addresses have the most.
    size_t most_handshakes = 1024;
    // Handshakes cost a stranger little and the thread much: after so long with them the bytes of
    // open connections have their turn. One handshake goes on in each turn; the addresses that
    // handshakes come from take turns.
    absl::Duration handshake_slice = absl::Milliseconds(2);
    // Once the plain side is closed, the other machine has so long to take the last bytes.
    absl::Duration farewell = absl::Seconds(30);
    // With more farewells under way than this the oldest one is ended: a stranger that keeps its
    // end open costs a descriptor or two so long. Farewells of members do not count.
    size_t most_farewells = 256;
    // Changed files that are not right are read again, though unchanged, after this time: a clock
    // or a disk may have been at fault.
    absl::Duration retry_after = absl::Seconds(10);
  };
  struct Opened {
    UniqueFd plain;  // non-blocking; its end is the connection's end
    // A client's other side is always a member.
    TlsPeer peer = TlsPeer::kGuest;
  };
  // Called once, from the thread; must not block. Else the status that the handshake ended with:
  // PermissionDenied where one side does not take the other, or the other speaks no TLS;
  // Unavailable, or the system's own error, where the connection broke; DeadlineExceeded.
  using OnOpened = std::function<void(absl::StatusOr<Opened>)>;

  // TlsContext::Make's errors; ResourceExhausted without a descriptor or a thread to spare. Once a
  // file of the credentials has changed, it is read again for the next handshake; where it is not
  // right, a line in the log says so, and the certificates from before go on. Open connections
  // notice nothing. The log warns at the start and once a day of certificates that end soon
  // (expiry.h).
  static absl::StatusOr<std::unique_ptr<TlsPump>> Start(const Credentials& credentials,
                                                        TlsContext::Side side,
                                                        const Options& options);
  static absl::StatusOr<std::unique_ptr<TlsPump>> Start(const Credentials& credentials,
                                                        TlsContext::Side side) {
    return Start(credentials, side, Options());
  }
  virtual ~TlsPump() = default;

  // `socket`: connected, non-blocking; bytes were at most peeked at. `server_name`: TlsPipe's.
  virtual void Open(UniqueFd socket, const std::string& server_name, OnOpened on_opened) = 0;

  // Whether a member's connection from this machine (OtherMachine, net/connect.h) is open.
  virtual bool HasMemberAt(const std::string& machine) const = 0;

  // TlsContext::good_until of the certificates that are used now.
  virtual absl::Time good_until() const = 0;
};

}  // namespace convene::rendezvous

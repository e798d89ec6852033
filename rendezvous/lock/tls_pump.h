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
    // With more of them under way than this the oldest one is ended.
    size_t most_handshakes = 1024;
  };
  struct Opened {
    UniqueFd plain;          // non-blocking; its end is the connection's end
    bool is_member = false;  // the other side has the token; a client's other side always has
  };
  // Called once, from the thread; must not block. Else the status that the handshake ended with:
  // PermissionDenied where the token is not the other side's, or the other side speaks no TLS;
  // Unavailable, or the system's own error, where the connection broke; DeadlineExceeded.
  using OnOpened = std::function<void(absl::StatusOr<Opened>)>;

  // ResourceExhausted without a descriptor or a thread to spare.
  static absl::StatusOr<std::unique_ptr<TlsPump>> Start(TlsContext context, TlsContext::Side side,
                                                        const Options& options);
  static absl::StatusOr<std::unique_ptr<TlsPump>> Start(TlsContext context, TlsContext::Side side) {
    return Start(std::move(context), side, Options());
  }
  virtual ~TlsPump() = default;

  // `socket`: connected, non-blocking; bytes were at most peeked at.
  virtual void Open(UniqueFd socket, OnOpened on_opened) = 0;

  // Whether a member's connection from this address (OtherHost, net/connect.h) is open.
  virtual bool HasMemberAt(const std::string& host) const = 0;
};

}  // namespace convene::rendezvous

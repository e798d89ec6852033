// Pumps of one token for tests, the ends of connections, and how their handshakes ended.
#pragma once

#include <sys/socket.h>

#include <catch2/catch.hpp>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "rendezvous/lock/credentials.h"
#include "rendezvous/lock/testing/by_hand.h"
#include "rendezvous/lock/tls_context.h"
#include "rendezvous/lock/tls_pump.h"
#include "tools/base/clock.h"
#include "tools/base/mutex.h"
#include "tools/base/testing/status_testing.h"
#include "tools/base/unique_fd.h"

namespace convene::rendezvous {

inline constexpr char kToken[] = "Xz3Vq0k7sT1mN8bYw5Jr2aPf";
inline constexpr absl::Duration kPatience = absl::Seconds(20);

inline MonotonicTime Soon() { return Clock::Real().Now() + kPatience; }

inline Credentials Token(const char* token) { return {.join_token = token}; }

inline std::unique_ptr<TlsPump> Pump(const Credentials& credentials, TlsContext::Side side,
                                     const TlsPump::Options& options = {}) {
  auto pump = TlsPump::Start(credentials, side, options);
  REQUIRE_OK(pump);
  return *std::move(pump);
}

// How a handshake ended.
class Waiter {
 public:
  TlsPump::OnOpened Callback() {
    return [this](absl::StatusOr<TlsPump::Opened> opened) {
      MutexLock lock(&mutex_);
      opened_ = std::move(opened);
      changed_.SignalAll();
    };
  }
  absl::StatusOr<TlsPump::Opened> Take() {
    MutexLock lock(&mutex_);
    const MonotonicTime deadline = Soon();
    while (!opened_.has_value()) {
      REQUIRE(Clock::Real().Now() < deadline);
      changed_.WaitFor(&mutex_, absl::Seconds(1));
    }
    return *std::move(opened_);
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::optional<absl::StatusOr<TlsPump::Opened>> opened_ ABSL_GUARDED_BY(mutex_);
};

struct Ends {
  UniqueFd server, client;
};
// Both ends of a connection within the machine.
inline Ends SocketPair() {
  int ends[2];
  REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) == 0);
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

// A member that offers these protocols alone.
struct MemberByHand : ByHand {
  MemberByHand(const TlsContext& context, UniqueFd socket, const std::string& protocols)
      : ByHand(SSL_new(context.get()), std::move(socket)) {
    SSL_set_alpn_protos(tls(), reinterpret_cast<const unsigned char*>(protocols.data()),
                        static_cast<unsigned int>(protocols.size()));
    REQUIRE(Shake());
  }
};

}  // namespace convene::rendezvous

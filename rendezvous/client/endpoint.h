// Where a daemon answers, and the secret by which it takes this process.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "rendezvous/lock/tls_pump.h"
#include "tools/base/mutex.h"

namespace convene::rendezvous {

// A value. Copies share the thread that carries TLS, which begins with the first connection and
// ends with the last copy.
class Endpoint {
 public:
  // `address`: "host:port". `join_token`: lock/token.h's; "" for a daemon that has none.
  Endpoint(std::string address, std::string join_token = "")  // NOLINT: an address is an endpoint
      : address_(std::move(address)) {
    if (!join_token.empty()) lock_ = std::make_shared<Lock>(std::move(join_token));
  }
  Endpoint(const char* address) : Endpoint(std::string(address)) {}  // NOLINT: likewise

  const std::string& address() const { return address_; }
  bool is_locked() const { return lock_ != nullptr; }
  // Another address, the same secret.
  Endpoint At(std::string address) const {
    Endpoint other = *this;
    other.address_ = std::move(address);
    return other;
  }

  // Carries TLS. TlsContext::Make's and TlsPump::Start's errors. REQUIRES: is_locked().
  absl::StatusOr<TlsPump*> Pump() const;

 private:
  struct Lock {
    explicit Lock(std::string token) : join_token(std::move(token)) {}
    const std::string join_token;
    Mutex mutex;
    std::unique_ptr<TlsPump> pump ABSL_GUARDED_BY(mutex);
  };

  std::string address_;
  std::shared_ptr<Lock> lock_;
};

}  // namespace convene::rendezvous

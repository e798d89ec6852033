// Where a daemon answers, and by what it takes this process.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "rendezvous/lock/credentials.h"
#include "rendezvous/lock/tls_pump.h"
#include "tools/base/mutex.h"

namespace convene::rendezvous {

// How an address is dialled.
struct Dialling {
  // One try, by a caller that has other endpoints to try; else tries until the deadline.
  bool is_once = false;
  // Rises with each try that led to a machine without an answer: another address of the same name
  // is then the first.
  int turn = 0;
};

// A value. Copies share the thread that carries TLS, which begins with the first connection and
// ends with the last copy.
class Endpoint {
 public:
  // `address`: "host:port", or several of them (places.h). `credentials`: empty for a daemon that
  // takes everybody.
  Endpoint(std::string address, Credentials credentials = {})  // NOLINT: an address is an endpoint
      : address_(std::move(address)) {
    if (!credentials.empty()) lock_ = std::make_shared<Lock>(std::move(credentials));
  }
  Endpoint(const char* address) : Endpoint(std::string(address)) {}  // NOLINT: likewise

  const std::string& address() const { return address_; }
  bool is_locked() const { return lock_ != nullptr; }
  // REQUIRES: is_locked().
  const Credentials& credentials() const { return lock_->credentials; }
  // The name or address that the daemon's certificate has to have; "": any; nullopt: that of
  // address().
  const std::optional<std::string>& server_name() const { return server_name_; }
  const Dialling& dialling() const { return dialling_; }
  // Another address, with the same credentials.
  Endpoint At(std::string address, std::optional<std::string> server_name,
              Dialling dialling = {}) const {
    Endpoint other = *this;
    other.address_ = std::move(address);
    other.server_name_ = std::move(server_name);
    other.dialling_ = dialling;
    return other;
  }
  // Each of several addresses, which is dialled once in that turn; itself, if it has one.
  std::vector<Endpoint> Each(int turn) const;

  // Carries TLS. TlsPump::Start's errors. REQUIRES: is_locked().
  absl::StatusOr<TlsPump*> Pump() const;

 private:
  struct Lock {
    explicit Lock(Credentials given) : credentials(std::move(given)) {}
    const Credentials credentials;
    Mutex mutex;
    std::unique_ptr<TlsPump> pump ABSL_GUARDED_BY(mutex);
  };

  std::string address_;
  std::optional<std::string> server_name_;
  Dialling dialling_;
  std::shared_ptr<Lock> lock_;
};

}  // namespace convene::rendezvous

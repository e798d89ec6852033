// TLS by OpenSSL alone, against a TlsPump.
#pragma once

#include <fcntl.h>
#include <openssl/ssl.h>

#include <string>
#include <utility>

#include "tools/base/unique_fd.h"

namespace convene::rendezvous {

// The client's side by hand, over a blocking socket.
class ByHand {
 public:
  ByHand(SSL* tls, UniqueFd socket) : socket_(std::move(socket)), tls_(tls) {
    const int flags = fcntl(socket_.get(), F_GETFL);
    fcntl(socket_.get(), F_SETFL, flags & ~O_NONBLOCK);
    SSL_set_fd(tls_, socket_.get());
  }
  ~ByHand() { SSL_free(tls_); }
  SSL* tls() { return tls_; }
  bool Shake() { return SSL_connect(tls_) == 1; }
  // "" where the connection ended.
  std::string Hear() {
    char bytes[100];
    const int count = SSL_read(tls_, bytes, sizeof(bytes));
    return count > 0 ? std::string(bytes, static_cast<size_t>(count)) : "";
  }
  void Say(const std::string& text) { SSL_write(tls_, text.data(), static_cast<int>(text.size())); }

 private:
  UniqueFd socket_;
  SSL* tls_;
};

}  // namespace convene::rendezvous

// Keys and rules of TLS between members of a run: all of them follow from the join token.
#pragma once

#include <openssl/ssl.h>

#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace convene::rendezvous {

// A pair of keys on the curve P-256 follows from the token, so each side that has the token has the
// same pair. Both show a certificate that they sign with it, and both take the other's only where
// its public key is theirs: by TLS 1.3's own proof that the other has the private key, it has the
// token. No authority, no names, no dates. A server also takes a client without a certificate, as a
// guest.
//
// Immutable, so thread-safe.
class TlsContext {
 public:
  enum class Side { kServer, kClient };
  // InvalidArgument: CheckToken's. Internal: OpenSSL's, in its words.
  static absl::StatusOr<TlsContext> Make(absl::string_view token, Side side);

  // Owned here; SSL_new takes a share of it.
  SSL_CTX* get() const { return context_.get(); }

 private:
  struct Free {
    void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
  };
  explicit TlsContext(SSL_CTX* context) : context_(context) {}

  std::unique_ptr<SSL_CTX, Free> context_;
};

// Whether the other side of a connection whose handshake is over has the token.
bool PeerIsMember(const SSL* connection);

// The oldest error in OpenSSL's queue of this thread, which is then empty; "" where there is none.
std::string TakeTlsError();

}  // namespace convene::rendezvous

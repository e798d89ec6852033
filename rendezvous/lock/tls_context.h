// Keys and rules of TLS between members of a run.
#pragma once

#include <openssl/ssl.h>

#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "rendezvous/lock/credentials.h"

namespace convene::rendezvous {

// The other side of a connection.
enum class TlsPeer {
  kGuest,   // it has shown no certificate, and no key of the token
  kViewer,  // it has a certificate that is taken, and does not speak as a member: a browser
  kReader,  // it has the read token of this side's join token (token.h), and a certificate that is
            // taken where both sides have some
  kMember,  // it has a certificate that is taken, and the same join token where there is one
};

// Without certificates of a CA the keys follow from the token. Members that both have it shake
// hands by a pre-shared key (RFC 8446, 2.2) with a Diffie-Hellman exchange: what was recorded stays
// closed when the token is known later. A side that does not know the key's name goes on by
// certificates: a pair on the curve P-256 follows from the token, and each takes the other's
// certificate only where its public key is its own. No authority, no names, no dates.
//
// With certificates of a CA each side takes the other's by the CA, the dates and the purpose, and a
// client the server's by its name too (SSL_set1_host).
//
// A server also takes a client without a certificate, as a guest, and a client that has the read
// token in the place of the join token, as a reader: it has the keys that follow from the read
// token, and the server has them too. Members and readers say that they are by ALPN, and prove
// their token by ProofOf where the handshake has not (IsProved). Immutable, so thread-safe.
class TlsContext {
 public:
  enum class Side { kServer, kClient };
  // UseCertificates' and CheckToken's errors. Internal: OpenSSL's, in its words. REQUIRES:
  // credentials are not empty.
  static absl::StatusOr<TlsContext> Make(const Credentials& credentials, Side side);

  // Owned here; SSL_new takes a share of it.
  SSL_CTX* get() const { return context_.get(); }

  // UseCertificates' time; InfiniteFuture without certificates of a CA.
  absl::Time good_until() const { return good_until_; }

  // By these bytes `side` proves to the other that it has the token: HMAC with the token as the key
  // over a secret of this connection alone (RFC 9266's tls-exporter), so they are of no use on
  // another. 32 bytes; the token is "" where there is none. `between`: kReader for the proof by the
  // read token of this side's token. REQUIRES: the handshake is over.
  std::string ProofOf(SSL* connection, Side side, TlsPeer between = TlsPeer::kMember) const;

 private:
  struct Free {
    void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
  };
  TlsContext(SSL_CTX* context, std::string token);

  std::unique_ptr<SSL_CTX, Free> context_;
  std::string token_;
  std::string read_token_;
  absl::Time good_until_ = absl::InfiniteFuture();
};

// The other side of a connection whose handshake is over; a member has yet to prove the token.
TlsPeer PeerOf(const SSL* connection);

// The handshake has proved the token to both sides, and neither sends ProofOf: they shook hands by
// the token's own key, and the other side is no Convene from before this rule.
bool IsProved(const SSL* connection);

// The oldest error in OpenSSL's queue of this thread, which is then empty; "" where there is none.
std::string TakeTlsError();

}  // namespace convene::rendezvous

// One TLS connection, and the plain bytes that it carries.
#pragma once

#include <openssl/ssl.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "rendezvous/lock/tls_context.h"
#include "tools/base/unique_fd.h"

namespace convene::rendezvous {

//   other machine ══ TLS over TCP ══ TlsPipe ── plain bytes, a socket pair ── gRPC, HTTP
//
// Moves as many bytes as both sides take, and never blocks. At most kMostKept bytes wait in it for
// each direction: a side that reads nothing holds up the other. The end of one direction goes on to
// the other side once all bytes before it have. Not thread-safe.
class TlsPipe {
 public:
  static constexpr size_t kMostKept = 64 * 1024;
  // A connection may renew the other side's keys so often (KeyUpdate of TLS 1.3): each time costs
  // this side two derivations of keys, and an answer where one is asked for. No member ever does.
  static constexpr int kMostRenewals = 32;

  // `socket`: connected, non-blocking, nothing read from it. `server_name`: of a client, the name
  // or address that a server's certificate of a CA has to have; "": any. `context` outlives the
  // pipe, and may be replaced by one of the same token.
  TlsPipe(const TlsContext& context, TlsContext::Side side, UniqueFd socket,
          const std::string& server_name);
  TlsPipe(const TlsPipe&) = delete;
  TlsPipe& operator=(const TlsPipe&) = delete;

  int socket() const { return socket_.get(); }
  int plain() const { return plain_.get(); }  // -1 before the handshake is over

  // Before Move: this descriptor has had an event. Bytes are not looked for without one, since a
  // look in vain costs as much as a message.
  void MarkReady(int fd) { (fd == socket_.get() ? socket_is_ready_ : plain_is_ready_) = true; }
  // After an event of either descriptor: moves bytes. OK: call again after the next event (Wanted).
  // Aborted: both directions have ended, close it. ResourceExhausted: the other side renewed its
  // keys too often, or this one has no descriptor. Any other status: it broke, in words.
  absl::Status Move();

  // The handshake is over, and the other side is known.
  bool is_open() const { return plain_.valid(); }
  TlsPeer peer() const { return peer_; }
  // The plain side's reader has closed its end, and its last bytes are not on their way yet.
  bool has_last_words() const;
  // The reader's end of the socket pair, once, when it is open.
  UniqueFd TakePlain() { return std::move(other_plain_); }

  // The events (of epoll) to wait for. 0: do not watch it at all, for a hang-up would be told again
  // and again.
  uint32_t WantedOfSocket() const;
  // Never 0: a reader that closes its end is always heard of. EPOLLET alone tells that once.
  uint32_t WantedOfPlain() const;

 private:
  struct Free {
    void operator()(SSL* connection) const { SSL_free(connection); }
  };

  // OpenSSL's msg_callback; `pipe`: a TlsPipe.
  static void CountRenewal(int is_sent, int version, int kind, const void* bytes, size_t size,
                           SSL* connection, void* pipe);
  absl::Status Receive();
  absl::Status Shake();
  absl::Status Prove();
  absl::Status OpenPlain();
  absl::Status Decrypt();
  absl::Status WritePlain();
  absl::Status ReadPlain();
  absl::Status Send();
  absl::Status TlsFailure(int result, const char* doing) const;
  size_t EncryptedBytes() const;
  // Bytes behind TLS's farewell are nothing of the connection: they are not read.
  bool HasHeardAll() const { return socket_ended_ || tls_ended_; }

  const TlsContext& context_;
  const TlsContext::Side side_;
  UniqueFd socket_;
  UniqueFd plain_;
  UniqueFd other_plain_;
  std::unique_ptr<SSL, Free> tls_;
  BIO* received_;   // of tls_
  BIO* encrypted_;  // of tls_
  std::string decrypted_;
  int renewals_ = 0;  // of the other side's keys
  bool is_shaken_ = false;
  bool socket_is_ready_ = true;  // bytes may have come that are not read yet
  bool plain_is_ready_ = false;  // likewise
  TlsPeer peer_ = TlsPeer::kGuest;
  bool socket_ended_ = false;  // no byte comes any more
  bool tls_ended_ = false;     // likewise within TLS
  bool plain_ended_ = false;
  bool told_plain_ = false;   // that no byte comes any more
  bool told_socket_ = false;  // likewise
  bool has_moved_ = false;    // in this round
};

}  // namespace convene::rendezvous

#include "rendezvous/lock/tls_pipe.h"

#include <openssl/err.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rendezvous/lock/certificates.h"
#include "rendezvous/lock/token.h"
#include "rendezvous/net/connect.h"
#include "rendezvous/net/peer_address.h"
#include "tools/base/check.h"
#include "tools/base/status_macros.h"

namespace convene::rendezvous {
namespace {

constexpr size_t kPiece = 16 * 1024;  // a TLS record's most
// Of one event: then other connections have their turn.
constexpr int kRoundsOfEvent = 16;

constexpr size_t kProofBytes = 32;

// False: OpenSSL has no memory.
bool SetServerName(SSL* connection, const std::string& name) {
  if (name.empty()) return true;
  SSL_set_hostflags(connection, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
  return X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(connection), name.c_str()) == 1 ||
         SSL_set1_host(connection, name.c_str()) == 1;
}

bool IsWait(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

}  // namespace

TlsPipe::TlsPipe(const TlsContext& context, TlsContext::Side side, UniqueFd socket,
                 const std::string& server_name)
    : context_(context),
      side_(side),
      socket_(std::move(socket)),
      tls_(SSL_new(context.get())),
      received_(BIO_new(BIO_s_mem())),
      encrypted_(BIO_new(BIO_s_mem())) {
  SSL_set_bio(tls_.get(), received_, encrypted_);
  SSL_set_msg_callback(tls_.get(), CountRenewal);
  SSL_set_msg_callback_arg(tls_.get(), this);
  CONVENE_CHECK(SetServerName(tls_.get(), server_name));
  side == TlsContext::Side::kServer ? SSL_set_accept_state(tls_.get())
                                    : SSL_set_connect_state(tls_.get());
}

void TlsPipe::CountRenewal(int is_sent, int /*version*/, int kind, const void* bytes, size_t size,
                           SSL* /*connection*/, void* pipe) {
  const bool is_renewal = is_sent == 0 && kind == SSL3_RT_HANDSHAKE && size > 0 &&
                          *static_cast<const unsigned char*>(bytes) == SSL3_MT_KEY_UPDATE;
  auto* const self = static_cast<TlsPipe*>(pipe);
  // Thousands more may have arrived with it: they are not looked at.
  if (is_renewal && ++self->renewals_ > kMostRenewals) BIO_reset(self->received_);
}

size_t TlsPipe::EncryptedBytes() const { return BIO_ctrl_pending(encrypted_); }

absl::Status TlsPipe::Move() {
  ERR_clear_error();
  for (int round = 0; round < kRoundsOfEvent; ++round) {
    has_moved_ = false;
    CONVENE_RETURN_IF_ERROR(Receive());
    const absl::Status shaken = is_open() ? absl::OkStatus() : Shake();
    if (shaken.ok() && is_open()) {
      CONVENE_RETURN_IF_ERROR(Decrypt());
      CONVENE_RETURN_IF_ERROR(WritePlain());
      CONVENE_RETURN_IF_ERROR(ReadPlain());
    }
    if (renewals_ > kMostRenewals) {
      return absl::ResourceExhaustedError(absl::StrCat("the other side renewed its keys more than ",
                                                       kMostRenewals, " times (TLS's KeyUpdate)"));
    }
    // An alert says why, so it goes out although the handshake failed.
    const absl::Status sent = Send();
    CONVENE_RETURN_IF_ERROR(shaken);
    CONVENE_RETURN_IF_ERROR(sent);
    if (told_plain_ && told_socket_) return absl::AbortedError("both directions have ended");
    if (!has_moved_) break;
  }
  return absl::OkStatus();
}

absl::Status TlsPipe::Receive() {
  const bool has_room = decrypted_.size() < kMostKept && BIO_ctrl_pending(received_) < kMostKept;
  if (!socket_is_ready_ || HasHeardAll() || !has_room) return absl::OkStatus();
  char bytes[kPiece];
  const ssize_t count = recv(socket_.get(), bytes, sizeof(bytes), 0);
  socket_is_ready_ = count == sizeof(bytes);
  if (count < 0 && IsWait(errno)) return absl::OkStatus();
  if (count < 0) return ErrnoStatus(errno, "the connection broke");
  has_moved_ = true;
  if (count == 0) {
    socket_ended_ = true;
    if (!is_open()) return absl::UnavailableError("the other side ended the connection");
    return absl::OkStatus();
  }
  BIO_write(received_, bytes, static_cast<int>(count));
  return absl::OkStatus();
}

absl::Status TlsPipe::TlsFailure(int result, const char* doing) const {
  const int error = SSL_get_error(tls_.get(), result);
  if (error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE) return absl::OkStatus();
  const std::string reason = TakeTlsError();
  const long verified = SSL_get_verify_result(tls_.get());
  if (!is_shaken_ && verified != X509_V_OK) {
    return absl::PermissionDeniedError(
        absl::StrCat(doing, ": the certificate of the other side ", WhyNotTaken(verified)));
  }
  return absl::PermissionDeniedError(
      absl::StrCat(doing, ": ", reason.empty() ? "the other side ended it" : reason));
}

absl::Status TlsPipe::Shake() {
  if (!is_shaken_) {
    const int result = SSL_do_handshake(tls_.get());
    if (result != 1) return TlsFailure(result, "TLS handshake");
    is_shaken_ = has_moved_ = true;
    peer_ = PeerOf(tls_.get());
    if (side_ == TlsContext::Side::kClient) {
      if (peer_ != TlsPeer::kMember) {
        return absl::PermissionDeniedError("the server is no daemon of this version of Convene");
      }
      if (!IsProved(tls_.get())) {
        SSL_write(tls_.get(), context_.ProofOf(tls_.get(), side_).data(), kProofBytes);
      }
    }
  }
  const bool speaks_grpc = peer_ == TlsPeer::kMember || peer_ == TlsPeer::kReader;
  return speaks_grpc && !IsProved(tls_.get()) ? Prove() : OpenPlain();
}

// The client's proof, then the server's answer. In TLS 1.3 a client's handshake is over before the
// server has looked at the client's certificate: without the answer a client that was turned away
// would see a daemon that hangs up.
absl::Status TlsPipe::Prove() {
  const bool is_server = side_ == TlsContext::Side::kServer;
  char proof[kProofBytes];
  const int result = SSL_read(tls_.get(), proof, sizeof(proof));
  if (result <= 0) return TlsFailure(result, "the other side did not take this one");
  const TlsContext::Side other = is_server ? TlsContext::Side::kClient : TlsContext::Side::kServer;
  const absl::string_view given(proof, static_cast<size_t>(result));
  // Both, so that the time tells nothing.
  const bool is_member = SecretsEqual(given, context_.ProofOf(tls_.get(), other));
  const bool is_reader = SecretsEqual(given, context_.ProofOf(tls_.get(), other, TlsPeer::kReader));
  if (!is_member && !(is_server && is_reader)) {
    // A client that hears no answer would take this for a daemon that died, and try again.
    const char refusal[kProofBytes] = {};
    if (is_server) SSL_write(tls_.get(), refusal, sizeof(refusal));
    return absl::PermissionDeniedError("the other side has another join token, or one side none");
  }
  if (is_server) {
    peer_ = is_member ? TlsPeer::kMember : TlsPeer::kReader;
    SSL_write(tls_.get(), context_.ProofOf(tls_.get(), side_, peer_).data(), kProofBytes);
  }
  return OpenPlain();
}

absl::Status TlsPipe::OpenPlain() {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) != 0) {
    return ErrnoStatus(errno, "no socket pair");
  }
  if (side_ == TlsContext::Side::kServer) NamePlainEnd(ends[0], OtherHost(socket_.get()));
  plain_.Reset(ends[0]);
  other_plain_.Reset(ends[1]);
  has_moved_ = true;
  return absl::OkStatus();
}

absl::Status TlsPipe::Decrypt() {
  const auto may_read = [this] {
    return socket_ended_ || BIO_ctrl_pending(received_) > 0 || SSL_pending(tls_.get()) > 0;
  };
  while (!tls_ended_ && decrypted_.size() < kMostKept && may_read()) {
    char bytes[kPiece];
    const int count = SSL_read(tls_.get(), bytes, sizeof(bytes));
    if (count > 0) {
      decrypted_.append(bytes, static_cast<size_t>(count));
      has_moved_ = true;
      continue;
    }
    const int error = SSL_get_error(tls_.get(), count);
    // An end without TLS's own farewell is that of a machine that died, or a cut: as in TCP.
    tls_ended_ = error == SSL_ERROR_ZERO_RETURN || (error == SSL_ERROR_WANT_READ && socket_ended_);
    if (tls_ended_) has_moved_ = true;
    return tls_ended_ ? absl::OkStatus() : TlsFailure(count, "TLS");
  }
  return absl::OkStatus();
}

absl::Status TlsPipe::WritePlain() {
  while (!decrypted_.empty()) {
    const ssize_t count = send(plain_.get(), decrypted_.data(), decrypted_.size(), MSG_NOSIGNAL);
    if (count < 0 && IsWait(errno)) return absl::OkStatus();
    if (count < 0) return absl::AbortedError("the plain side reads no more");
    decrypted_.erase(0, static_cast<size_t>(count));
    has_moved_ = true;
  }
  if (tls_ended_ && !told_plain_) {
    shutdown(plain_.get(), SHUT_WR);
    told_plain_ = has_moved_ = true;
  }
  return absl::OkStatus();
}

absl::Status TlsPipe::ReadPlain() {
  if (!plain_is_ready_ || plain_ended_ || EncryptedBytes() >= kMostKept) return absl::OkStatus();
  char bytes[kPiece];
  const ssize_t count = recv(plain_.get(), bytes, sizeof(bytes), 0);
  plain_is_ready_ = count == sizeof(bytes);
  if (count < 0 && IsWait(errno)) return absl::OkStatus();
  has_moved_ = true;
  if (count <= 0) {
    plain_ended_ = true;
    SSL_shutdown(tls_.get());
    return absl::OkStatus();
  }
  // Into memory: it takes all of it, or TLS itself is broken.
  const int written = SSL_write(tls_.get(), bytes, static_cast<int>(count));
  return written == count ? absl::OkStatus() : TlsFailure(written, "TLS");
}

absl::Status TlsPipe::Send() {
  for (;;) {
    char* bytes = nullptr;
    const long waiting = BIO_get_mem_data(encrypted_, &bytes);
    if (waiting <= 0) break;
    const ssize_t count = send(socket_.get(), bytes, static_cast<size_t>(waiting), MSG_NOSIGNAL);
    if (count < 0 && IsWait(errno)) return absl::OkStatus();
    if (count < 0) return ErrnoStatus(errno, "the connection broke");
    has_moved_ = true;
    // Forgets what was sent.
    char skipped[kPiece];
    for (ssize_t left = count; left > 0;) {
      const int piece = static_cast<int>(std::min<ssize_t>(left, sizeof(skipped)));
      left -= BIO_read(encrypted_, skipped, piece);
    }
  }
  if (plain_ended_ && !told_socket_) {
    shutdown(socket_.get(), SHUT_WR);
    told_socket_ = has_moved_ = true;
  }
  return absl::OkStatus();
}

bool TlsPipe::has_last_words() const {
  if (!is_open() || told_socket_) return false;
  // While the other machine takes nothing, the end stands behind bytes that are not read yet.
  pollfd hung_up = {.fd = plain_.get(), .events = 0, .revents = 0};
  return plain_ended_ || (poll(&hung_up, 1, 0) == 1 && (hung_up.revents & POLLHUP) != 0);
}

uint32_t TlsPipe::WantedOfSocket() const {
  uint32_t events = 0;
  if (!HasHeardAll() && decrypted_.size() < kMostKept) events |= EPOLLIN;
  if (EncryptedBytes() > 0) events |= EPOLLOUT;
  return events;
}

uint32_t TlsPipe::WantedOfPlain() const {
  uint32_t events = 0;
  if (!plain_ended_ && EncryptedBytes() < kMostKept) events |= EPOLLIN;
  if (!decrypted_.empty()) events |= EPOLLOUT;
  return events != 0 ? events : EPOLLET;
}

}  // namespace convene::rendezvous

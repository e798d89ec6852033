#include "rendezvous/lock/tls_context.h"

#include <openssl/bn.h>
#include <openssl/core_names.h>
#include <openssl/ec.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/obj_mac.h>
#include <openssl/param_build.h>
#include <openssl/x509.h>

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "rendezvous/lock/certificates.h"
#include "rendezvous/lock/openssl_owned.h"
#include "rendezvous/lock/token.h"
#include "tools/base/check.h"
#include "tools/base/status_macros.h"

namespace convene::rendezvous {
namespace {

// The protocols that members speak within TLS, by ALPN (RFC 7301), the best first: the length and
// the name of each.
constexpr unsigned char kProtocols[] =
    "\x09"
    "convene/2"
    "\x09"
    "convene/1";
constexpr unsigned int kProtocolsBytes = sizeof(kProtocols) - 1;

absl::Status OpensslError(absl::string_view what) {
  return absl::InternalError(absl::StrCat("OpenSSL: ", what, ": ", TakeTlsError()));
}

// The private key is 1 + (384 bits of the token) mod (n - 1): as FIPS 186-5, A.2.1, from more bits
// than the curve has, so that each key is about as likely as any other.
OwnedKey KeyOf(absl::string_view token) {
  const std::string bits =
      DeriveSecret(token, "convene key 1") + DeriveSecret(token, "convene key 2").substr(0, 16);
  const Owned<EC_GROUP, EC_GROUP_free> curve(EC_GROUP_new_by_curve_name(NID_X9_62_prime256v1));
  const Owned<BN_CTX, BN_CTX_free> scratch(BN_CTX_secure_new());
  const Owned<BIGNUM, BN_clear_free> secret(BN_bin2bn(
      reinterpret_cast<const unsigned char*>(bits.data()), static_cast<int>(bits.size()), nullptr));
  const Owned<BIGNUM, BN_free> order(BN_dup(EC_GROUP_get0_order(curve.get())));
  const Owned<EC_POINT, EC_POINT_free> point(EC_POINT_new(curve.get()));
  unsigned char text[65];
  const bool is_made =
      BN_sub_word(order.get(), 1) == 1 &&
      BN_nnmod(secret.get(), secret.get(), order.get(), scratch.get()) == 1 &&
      BN_add_word(secret.get(), 1) == 1 &&
      EC_POINT_mul(curve.get(), point.get(), secret.get(), nullptr, nullptr, scratch.get()) == 1 &&
      EC_POINT_point2oct(curve.get(), point.get(), POINT_CONVERSION_UNCOMPRESSED, text,
                         sizeof(text), scratch.get()) == sizeof(text);
  if (!is_made) return nullptr;
  const Owned<OSSL_PARAM_BLD, OSSL_PARAM_BLD_free> builder(OSSL_PARAM_BLD_new());
  OSSL_PARAM_BLD_push_utf8_string(builder.get(), OSSL_PKEY_PARAM_GROUP_NAME, SN_X9_62_prime256v1,
                                  0);
  OSSL_PARAM_BLD_push_BN(builder.get(), OSSL_PKEY_PARAM_PRIV_KEY, secret.get());
  OSSL_PARAM_BLD_push_octet_string(builder.get(), OSSL_PKEY_PARAM_PUB_KEY, text, sizeof(text));
  const Owned<OSSL_PARAM, OSSL_PARAM_free> params(OSSL_PARAM_BLD_to_param(builder.get()));
  const Owned<EVP_PKEY_CTX, EVP_PKEY_CTX_free> maker(
      EVP_PKEY_CTX_new_from_name(nullptr, "EC", nullptr));
  EVP_PKEY* key = nullptr;
  if (params == nullptr || EVP_PKEY_fromdata_init(maker.get()) != 1 ||
      EVP_PKEY_fromdata(maker.get(), &key, EVP_PKEY_KEYPAIR, params.get()) != 1) {
    return nullptr;
  }
  return OwnedKey(key);
}

// Valid from 2000 to 9999: a clock that is off keeps nobody out, and the token is what expires.
OwnedCertificate CertificateOf(EVP_PKEY* key) {
  OwnedCertificate certificate(X509_new());
  X509_NAME* const name = X509_get_subject_name(certificate.get());
  const bool is_made =
      X509_set_version(certificate.get(), X509_VERSION_3) == 1 &&
      ASN1_INTEGER_set(X509_get_serialNumber(certificate.get()), 1) == 1 &&
      ASN1_TIME_set_string_X509(X509_getm_notBefore(certificate.get()), "20000101000000Z") == 1 &&
      ASN1_TIME_set_string_X509(X509_getm_notAfter(certificate.get()), "99991231235959Z") == 1 &&
      X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC,
                                 reinterpret_cast<const unsigned char*>("convene"), -1, -1,
                                 0) == 1 &&
      X509_set_issuer_name(certificate.get(), name) == 1 &&
      X509_set_pubkey(certificate.get(), key) == 1 &&
      X509_sign(certificate.get(), key, EVP_sha256()) != 0;
  return is_made ? std::move(certificate) : nullptr;
}

// OpenSSL asks this in place of its search for an authority. `own`: the connection's SSL_CTX, whose
// public key the other side has to have.
int HasOwnKey(X509_STORE_CTX* asked, void* own) {
  const X509* const mine = SSL_CTX_get0_certificate(static_cast<SSL_CTX*>(own));
  const X509* const other = X509_STORE_CTX_get0_cert(asked);
  const bool is_equal =
      other != nullptr && EVP_PKEY_eq(X509_get0_pubkey(other), X509_get0_pubkey(mine)) == 1;
  X509_STORE_CTX_set_error(asked, is_equal ? X509_V_OK : X509_V_ERR_APPLICATION_VERIFICATION);
  return is_equal ? 1 : 0;
}

// A client that offers another protocol, or none, gets the page.
int SelectProtocol(SSL*, const unsigned char** selected, unsigned char* selected_bytes,
                   const unsigned char* offered, unsigned int offered_bytes, void*) {
  unsigned char* found = nullptr;
  if (SSL_select_next_proto(&found, selected_bytes, kProtocols, kProtocolsBytes, offered,
                            offered_bytes) != OPENSSL_NPN_NEGOTIATED) {
    return SSL_TLSEXT_ERR_NOACK;
  }
  *selected = found;
  return SSL_TLSEXT_ERR_OK;
}

// Each SSL_CTX owns a session of the token here, and a server's one of the read token: a connection
// keeps the SSL_CTX alive for longer than its TlsContext.
struct SessionIndexes {
  int own, readers;
};

const SessionIndexes& TokenSessions() {
  const auto index = [] {
    return SSL_CTX_get_ex_new_index(0, nullptr, nullptr, nullptr,
                                    [](void*, void* session, CRYPTO_EX_DATA*, int, long, void*) {
                                      SSL_SESSION_free(static_cast<SSL_SESSION*>(session));
                                    });
  };
  static const SessionIndexes indexes = {.own = index(), .readers = index()};
  return indexes;
}

// A connection has something here when the key that it goes by is the readers'.
int ReaderMark() {
  static const int index = SSL_get_ex_new_index(0, nullptr, nullptr, nullptr, nullptr);
  return index;
}

SSL_SESSION* TokenSession(const SSL* connection, int index) {
  return static_cast<SSL_SESSION*>(SSL_CTX_get_ex_data(SSL_get_SSL_CTX(connection), index));
}

// The client's offer: the token's key, by its name.
int OfferTokenKey(SSL* connection, const EVP_MD* hash, const unsigned char** name,
                  size_t* name_bytes, SSL_SESSION** session) {
  *session = nullptr;
  if (hash != nullptr && EVP_MD_get_type(hash) != NID_sha256) return 1;
  SSL_SESSION* const own = TokenSession(connection, TokenSessions().own);
  unsigned int bytes = 0;
  *name = SSL_SESSION_get_id(own, &bytes);
  *name_bytes = bytes;
  // OpenSSL writes into a client's session, and this one is of all connections.
  *session = SSL_SESSION_dup(own);
  return *session == nullptr ? 0 : 1;
}

// The server's look for a key that a client offers. OpenSSL asks for the client's keys in order,
// and goes by the last that it got here. A client that offers none of both has to show a
// certificate, or is a guest.
int FindTokenKey(SSL* connection, const unsigned char* name, size_t name_bytes,
                 SSL_SESSION** session) {
  *session = nullptr;
  for (const int index : {TokenSessions().own, TokenSessions().readers}) {
    SSL_SESSION* const own = TokenSession(connection, index);
    unsigned int bytes = 0;
    const unsigned char* const own_name = SSL_SESSION_get_id(own, &bytes);
    if (name_bytes != bytes || CRYPTO_memcmp(name, own_name, bytes) != 0) continue;
    const bool is_reader = index == TokenSessions().readers;
    if (SSL_set_ex_data(connection, ReaderMark(), is_reader ? own : nullptr) != 1) return 0;
    SSL_SESSION_up_ref(own);
    *session = own;
  }
  return 1;
}

// The key that members of `token` have, as OpenSSL wants it, put at `index` of the context. The
// key's name is derived from the token, too, and tells nothing of it.
absl::Status AddTokenSession(absl::string_view token, SSL_CTX* context, int index) {
  // Any name: OpenSSL takes no session of a context that verifies others and has none.
  constexpr unsigned char kSessionContext[] = {'c'};
  constexpr long kCenturySeconds = 100L * 365 * 24 * 3600;
  constexpr unsigned char kCipher[] = {0x13, 0x01};  // TLS_AES_128_GCM_SHA256
  const std::string key = DeriveSecret(token, "convene psk");
  const std::string name = DeriveSecret(token, "convene psk name").substr(0, 16);
  Owned<SSL_SESSION, SSL_SESSION_free> session(SSL_SESSION_new());
  const Owned<SSL, SSL_free> connection(SSL_new(context));
  const SSL_CIPHER* const cipher =
      connection == nullptr ? nullptr : SSL_CIPHER_find(connection.get(), kCipher);
  const bool is_made =
      session != nullptr && cipher != nullptr &&
      SSL_SESSION_set1_master_key(session.get(), reinterpret_cast<const unsigned char*>(key.data()),
                                  key.size()) == 1 &&
      SSL_SESSION_set1_id(session.get(), reinterpret_cast<const unsigned char*>(name.data()),
                          static_cast<unsigned int>(name.size())) == 1 &&
      SSL_SESSION_set_cipher(session.get(), cipher) == 1 &&
      SSL_SESSION_set_protocol_version(session.get(), TLS1_3_VERSION) == 1 &&
      // Else OpenSSL takes it for five minutes.
      SSL_SESSION_set_timeout(session.get(), kCenturySeconds) == 1 &&
      SSL_CTX_set_session_id_context(context, kSessionContext, sizeof(kSessionContext)) == 1 &&
      SSL_SESSION_set1_id_context(session.get(), kSessionContext, sizeof(kSessionContext)) == 1 &&
      SSL_CTX_set_ex_data(context, index, session.get()) == 1;
  if (!is_made) return OpensslError("no key of the token for both sides");
  static_cast<void>(session.release());  // the context has it
  return absl::OkStatus();
}

// Members of one token shake hands by a key that both have before (RFC 8446, 2.2: an external PSK
// with a Diffie-Hellman exchange): no signature and no certificate, which are four fifths of a
// handshake's cost.
absl::Status UsePreSharedKeys(absl::string_view token, TlsContext::Side side, SSL_CTX* context) {
  // The key goes with the hash of its cipher, so a client asks for that one first.
  if (SSL_CTX_set_ciphersuites(
          context, "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256") !=
      1) {
    return OpensslError("no cipher for the key of the token");
  }
  CONVENE_RETURN_IF_ERROR(AddTokenSession(token, context, TokenSessions().own));
  if (side == TlsContext::Side::kClient) {
    SSL_CTX_set_psk_use_session_callback(context, OfferTokenKey);
    return absl::OkStatus();
  }
  SSL_CTX_set_psk_find_session_callback(context, FindTokenKey);
  return AddTokenSession(ReadToken(token), context, TokenSessions().readers);
}

absl::Status UseKeyOfToken(absl::string_view token, TlsContext::Side side, SSL_CTX* context) {
  const OwnedKey key = KeyOf(token);
  if (key == nullptr) return OpensslError("no key from the token");
  const OwnedCertificate certificate = CertificateOf(key.get());
  if (certificate == nullptr || SSL_CTX_use_certificate(context, certificate.get()) != 1 ||
      SSL_CTX_use_PrivateKey(context, key.get()) != 1) {
    return OpensslError("no certificate");
  }
  SSL_CTX_set_cert_verify_callback(context, HasOwnKey, context);
  return UsePreSharedKeys(token, side, context);
}

}  // namespace

TlsContext::TlsContext(SSL_CTX* context, std::string token)
    : context_(context),
      token_(std::move(token)),
      read_token_(token_.empty() ? "" : ReadToken(token_)) {}

absl::StatusOr<TlsContext> TlsContext::Make(const Credentials& credentials, Side side) {
  CONVENE_CHECK(!credentials.empty());
  if (!credentials.join_token.empty()) {
    CONVENE_RETURN_IF_ERROR(CheckToken(credentials.join_token, "this process"));
  }
  const bool is_server = side == Side::kServer;
  TlsContext context(SSL_CTX_new(is_server ? TLS_server_method() : TLS_client_method()),
                     credentials.join_token);
  SSL_CTX* const made = context.get();
  if (made == nullptr || SSL_CTX_set_min_proto_version(made, TLS1_3_VERSION) != 1) {
    return OpensslError("no context");
  }
  // A session that is taken up again would show no certificate. The token's key is none of those.
  SSL_CTX_set_session_cache_mode(made, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_num_tickets(made, 0);
  SSL_CTX_set_options(made, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION);
  SSL_CTX_set_mode(made, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                             SSL_MODE_RELEASE_BUFFERS);
  SSL_CTX_set_verify(made, SSL_VERIFY_PEER, nullptr);
  if (is_server) {
    SSL_CTX_set_alpn_select_cb(made, SelectProtocol, nullptr);
  } else if (SSL_CTX_set_alpn_protos(made, kProtocols, kProtocolsBytes) != 0) {
    return OpensslError("no protocol");
  }
  if (credentials.has_certificates()) {
    CONVENE_ASSIGN_OR_RETURN(context.good_until_, UseCertificates(credentials, made));
  } else {
    CONVENE_RETURN_IF_ERROR(UseKeyOfToken(credentials.join_token, side, made));
  }
  return context;
}

std::string TlsContext::ProofOf(SSL* connection, Side side, TlsPeer between) const {
  constexpr absl::string_view kLabel = "EXPORTER-convene-join-token";
  unsigned char secret[32];
  CONVENE_CHECK(SSL_export_keying_material(connection, secret, sizeof(secret), kLabel.data(),
                                           kLabel.size(), nullptr, 0, 0) == 1);
  return DeriveSecret(
      between == TlsPeer::kReader ? read_token_ : token_,
      absl::StrCat(side == Side::kServer ? "server " : "client ",
                   absl::string_view(reinterpret_cast<char*>(secret), sizeof(secret))));
}

// A certificate that is there was found right, and so was a key, or the handshake had failed.
TlsPeer PeerOf(const SSL* connection) {
  // There are no sessions to take up again but the token's key.
  const bool has_token_key = SSL_session_reused(connection) == 1;
  if (!has_token_key && SSL_get0_peer_certificate(connection) == nullptr) return TlsPeer::kGuest;
  const unsigned char* protocol = nullptr;
  unsigned int bytes = 0;
  SSL_get0_alpn_selected(connection, &protocol, &bytes);
  if (bytes == 0) return TlsPeer::kViewer;
  const bool has_readers_key =
      has_token_key && SSL_get_ex_data(connection, ReaderMark()) != nullptr;
  return has_readers_key ? TlsPeer::kReader : TlsPeer::kMember;
}

bool IsProved(const SSL* connection) {
  const unsigned char* protocol = nullptr;
  unsigned int bytes = 0;
  SSL_get0_alpn_selected(connection, &protocol, &bytes);
  return SSL_session_reused(connection) == 1 &&
         absl::string_view(reinterpret_cast<const char*>(protocol), bytes) == "convene/2";
}

std::string TakeTlsError() {
  const unsigned long error = ERR_get_error();
  ERR_clear_error();
  if (error == 0) return "";
  const char* const reason = ERR_reason_error_string(error);
  return reason == nullptr ? absl::StrCat("error ", error) : reason;
}

}  // namespace convene::rendezvous

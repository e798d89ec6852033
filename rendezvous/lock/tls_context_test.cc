#include "rendezvous/lock/tls_context.h"

#include <openssl/bio.h>
#include <openssl/ssl.h>

#include <catch2/catch.hpp>
#include <memory>
#include <string>
#include <utility>

#include "rendezvous/lock/credentials.h"
#include "rendezvous/lock/openssl_owned.h"
#include "rendezvous/lock/token.h"
#include "tools/base/testing/status_testing.h"

namespace convene::rendezvous {
namespace {

constexpr char kToken[] = "Xz3Vq0k7sT1mN8bYw5Jr2aPf";
constexpr char kOther[] = "Xz3Vq0k7sT1mN8bYw5Jr2aPg";
using Connection = Owned<SSL, SSL_free>;

TlsContext Context(const char* token, TlsContext::Side side) {
  auto context = TlsContext::Make({.join_token = token}, side);
  REQUIRE_OK(context);
  return *std::move(context);
}

// A handshake in memory.
struct Handshake {
  Connection server, client;
  bool is_done = false;

  Handshake(SSL_CTX* of_server, SSL_CTX* of_client)
      : server(SSL_new(of_server)), client(SSL_new(of_client)) {
    BIO* at_server = nullptr;
    BIO* at_client = nullptr;
    REQUIRE(BIO_new_bio_pair(&at_server, 1 << 16, &at_client, 1 << 16) == 1);
    SSL_set_bio(server.get(), at_server, at_server);
    SSL_set_bio(client.get(), at_client, at_client);
    SSL_set_accept_state(server.get());
    SSL_set_connect_state(client.get());
    for (int round = 0; round < 10 && !is_done; ++round) {
      const int of_client_now = SSL_do_handshake(client.get());
      is_done = SSL_do_handshake(server.get()) == 1 && of_client_now == 1;
    }
    TakeTlsError();
  }
};

TEST_CASE("members of one token shake hands by its key, with no certificate and fresh secrets") {
  const TlsContext server = Context(kToken, TlsContext::Side::kServer);
  const TlsContext client = Context(kToken, TlsContext::Side::kClient);
  std::string first_proof;
  for (int time = 0; time < 2; ++time) {
    Handshake hands(server.get(), client.get());
    REQUIRE(hands.is_done);
    CHECK(PeerOf(hands.server.get()) == TlsPeer::kMember);
    CHECK(PeerOf(hands.client.get()) == TlsPeer::kMember);
    CHECK(SSL_get0_peer_certificate(hands.client.get()) == nullptr);
    CHECK(SSL_get0_peer_certificate(hands.server.get()) == nullptr);
    // The key does not grow old with the process.
    CHECK(SSL_SESSION_get_timeout(SSL_get_session(hands.server.get())) > 10L * 365 * 24 * 3600);
    // A Diffie-Hellman exchange: without one there would be no group.
    CHECK(SSL_get_negotiated_group(hands.client.get()) != 0);
    const std::string proof = client.ProofOf(hands.client.get(), TlsContext::Side::kClient);
    CHECK(proof == server.ProofOf(hands.server.get(), TlsContext::Side::kClient));
    CHECK(proof != first_proof);
    first_proof = proof;
  }
}

TEST_CASE("the read token has a key of its own, which makes a reader and no member") {
  const TlsContext server = Context(kToken, TlsContext::Side::kServer);
  const TlsContext reader = Context(ReadToken(kToken).c_str(), TlsContext::Side::kClient);
  Handshake hands(server.get(), reader.get());
  REQUIRE(hands.is_done);
  CHECK(PeerOf(hands.server.get()) == TlsPeer::kReader);
  CHECK(PeerOf(hands.client.get()) == TlsPeer::kMember);
  CHECK(IsProved(hands.server.get()));
  const auto client_proof = [&](const TlsContext& context, SSL* connection, TlsPeer between) {
    return context.ProofOf(connection, TlsContext::Side::kClient, between);
  };
  CHECK(client_proof(reader, hands.client.get(), TlsPeer::kMember) ==
        client_proof(server, hands.server.get(), TlsPeer::kReader));
  CHECK(client_proof(reader, hands.client.get(), TlsPeer::kMember) !=
        client_proof(server, hands.server.get(), TlsPeer::kMember));
  // The way back is closed: a reader that plays the daemon is none for members.
  const TlsContext false_daemon = Context(ReadToken(kToken).c_str(), TlsContext::Side::kServer);
  const TlsContext member = Context(kToken, TlsContext::Side::kClient);
  CHECK_FALSE(Handshake(false_daemon.get(), member.get()).is_done);
}

TEST_CASE("a side without the key goes on by certificates of the token") {
  const TlsContext server = Context(kToken, TlsContext::Side::kServer);
  const TlsContext client = Context(kToken, TlsContext::Side::kClient);
  SSL_CTX_set_psk_use_session_callback(client.get(), nullptr);
  Handshake hands(server.get(), client.get());
  REQUIRE(hands.is_done);
  CHECK(SSL_get0_peer_certificate(hands.client.get()) != nullptr);
  CHECK(PeerOf(hands.server.get()) == TlsPeer::kMember);
}

TEST_CASE("another token's key opens nothing, and under the right name neither") {
  const TlsContext server = Context(kToken, TlsContext::Side::kServer);
  const TlsContext other = Context(kOther, TlsContext::Side::kClient);
  CHECK_FALSE(Handshake(server.get(), other.get()).is_done);

  const TlsContext member = Context(kToken, TlsContext::Side::kClient);
  const Handshake hands(server.get(), member.get());
  static SSL_SESSION* const kKey = SSL_get1_session(hands.server.get());
  SSL_CTX_set_psk_find_session_callback(
      server.get(), [](SSL*, const unsigned char*, size_t, SSL_SESSION** session) {
        SSL_SESSION_up_ref(kKey);
        *session = kKey;
        return 1;
      });
  CHECK(Handshake(server.get(), member.get()).is_done);
  CHECK_FALSE(Handshake(server.get(), other.get()).is_done);
}

TEST_CASE("a client that offers some other key, such as a browser's ticket, is a guest") {
  const TlsContext server = Context(kToken, TlsContext::Side::kServer);
  const Owned<SSL_CTX, SSL_CTX_free> browser(SSL_CTX_new(TLS_client_method()));
  SSL_CTX_set_ciphersuites(browser.get(), "TLS_AES_128_GCM_SHA256");
  SSL_CTX_set_psk_use_session_callback(
      browser.get(), [](SSL* connection, const EVP_MD*, const unsigned char** name, size_t* bytes,
                        SSL_SESSION** session) {
        static constexpr unsigned char kName[] = "a ticket of old";  // as long as the token's
        const unsigned char key[32] = {1};
        const unsigned char cipher[] = {0x13, 0x01};
        *session = SSL_SESSION_new();
        SSL_SESSION_set1_master_key(*session, key, sizeof(key));
        SSL_SESSION_set_cipher(*session, SSL_CIPHER_find(connection, cipher));
        SSL_SESSION_set_protocol_version(*session, TLS1_3_VERSION);
        *name = kName;
        *bytes = sizeof(kName);
        return 1;
      });
  const Handshake hands(server.get(), browser.get());
  REQUIRE(hands.is_done);
  CHECK(PeerOf(hands.server.get()) == TlsPeer::kGuest);
}

TEST_CASE("a connection may outlive the context that it was made of") {
  auto server = std::make_unique<TlsContext>(Context(kToken, TlsContext::Side::kServer));
  const TlsContext client = Context(kToken, TlsContext::Side::kClient);
  Connection kept(SSL_new(server->get()));
  server.reset();
  Handshake hands(SSL_get_SSL_CTX(kept.get()), client.get());
  CHECK(hands.is_done);
}

}  // namespace
}  // namespace convene::rendezvous

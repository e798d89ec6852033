"""Bugs planted in the lock of the rendezvous' door."""

from planting import Mutation

LOCK = 'rendezvous/lock'
TOKEN_TEST = f'//{LOCK}:token_test'
CONTEXT_TEST = f'//{LOCK}:tls_context_test'
PUMP_TEST = f'//{LOCK}:tls_pump_test'
CERTIFICATES_TEST = f'//{LOCK}:certificates_test'
FRONT = 'rendezvous/server/front.cc'
FRONT_TEST = '//rendezvous/server:front_test'
PASSWORD_TEST = '//rendezvous/web:password_test'

MUTATIONS = [
    Mutation('a token that everybody reads is taken', f'{LOCK}/secret_file.cc', '(facts.st_mode & S_IROTH) != 0', 'false', TOKEN_TEST),
    Mutation('a token that the group reads is taken', f'{LOCK}/secret_file.cc', '(facts.st_mode & S_IRGRP) != 0', 'false', TOKEN_TEST),
    Mutation('the variable stays in the memory of the environment', f'{LOCK}/token.cc', 'OPENSSL_cleanse(value, token.size());', '', TOKEN_TEST),
    Mutation('workers get the variable', f'{LOCK}/token.cc', 'unsetenv(kTokenVariable);', '', TOKEN_TEST),
    Mutation('all secrets of a token are the same', f'{LOCK}/token.cc', 'reinterpret_cast<const unsigned char*>(purpose.data()), purpose.size()',
             'reinterpret_cast<const unsigned char*>(purpose.data()), 0', TOKEN_TEST),
    Mutation('any certificate is a member', f'{LOCK}/tls_context.cc', 'return is_equal ? 1 : 0;', 'return 1;', PUMP_TEST),
    Mutation('all tokens have the same key', f'{LOCK}/tls_context.cc', 'BN_add_word(secret.get(), 1) == 1', 'BN_set_word(secret.get(), 7) == 1',
             PUMP_TEST),
    Mutation('a guest is a member', f'{LOCK}/tls_context.cc', 'return TlsPeer::kGuest;', 'return TlsPeer::kMember;', PUMP_TEST),
    Mutation('a browser is a member', f'{LOCK}/tls_context.cc', 'bytes > 0 ? TlsPeer::kMember : TlsPeer::kViewer', 'TlsPeer::kMember', PUMP_TEST),
    Mutation('any name is the key of the token', f'{LOCK}/tls_context.cc',
             'name_bytes != bytes || CRYPTO_memcmp(name, own_name, bytes) != 0',
             'name_bytes == 0 && CRYPTO_memcmp(name, own_name, bytes) != 0', CONTEXT_TEST),
    Mutation('all tokens have the same key before', f'{LOCK}/tls_context.cc',
             'DeriveSecret(token, "convene psk");', 'DeriveSecret("x", "convene psk");', CONTEXT_TEST),
    Mutation('a client does not offer the key', f'{LOCK}/tls_context.cc', 'SSL_CTX_set_psk_use_session_callback(context, OfferTokenKey);',
             'if (context == nullptr) SSL_CTX_set_psk_use_session_callback(context, OfferTokenKey);', CONTEXT_TEST),
    Mutation('the key of the token is old after five minutes', f'{LOCK}/tls_context.cc', 'SSL_SESSION_set_timeout(session.get(), kCenturySeconds) == 1',
             'kCenturySeconds > 0',
             CONTEXT_TEST),
    Mutation('the key of the token dies with its context', f'{LOCK}/tls_context.cc',
             'static_cast<void>(session.release());  // the context has it', '', CONTEXT_TEST),
    Mutation('a client does not wait for the answer', f'{LOCK}/tls_pipe.cc', 'return peer_ == TlsPeer::kMember ? Prove() : OpenPlain();',
             'return peer_ == TlsPeer::kMember && side_ == TlsContext::Side::kServer ? Prove() : OpenPlain();', PUMP_TEST),
    Mutation('a member with certificates need not have the token', f'{LOCK}/tls_pipe.cc',
             'if (!SecretsEqual({proof, static_cast<size_t>(result)}, context_.ProofOf(tls_.get(), other))) {', 'if (other == side_) {', PUMP_TEST),
    Mutation('a client that is turned away by its token hears nothing', f'{LOCK}/tls_pipe.cc',
             'if (is_server) SSL_write(tls_.get(), refusal, sizeof(refusal));', '(void)refusal;', PUMP_TEST),
    Mutation('a daemon may have any name', f'{LOCK}/tls_pipe.cc', 'if (name.empty()) return true;', 'return true;',
             PUMP_TEST),
    Mutation('a certificate that is wrong counts all the same', f'{LOCK}/tls_context.cc', 'SSL_CTX_set_verify(made, SSL_VERIFY_PEER, nullptr);',
             'SSL_CTX_set_verify(made, SSL_VERIFY_PEER, [](int, X509_STORE_CTX*) { return 1; });', PUMP_TEST),
    Mutation('certificates are read once', f'{LOCK}/tls_pump.cc', 'if (!has_changed && now < retry_at_) return;', 'return;', PUMP_TEST),
    Mutation('certificates that were wrong once are wrong until they change', f'{LOCK}/tls_pump.cc', 'retry_at_ = now + options_.retry_after;', '', PUMP_TEST),
    Mutation('a CA needs its root', f'{LOCK}/certificates.cc', 'X509_STORE_set_flags(store, X509_V_FLAG_PARTIAL_CHAIN);', '', CERTIFICATES_TEST),
    Mutation('a job on one node wants its own address in its certificate', 'agent/rendezvous_link.h', 'is_own ? "" : place.host',
             'place.host', '//tests/e2e:certificates_test'),
    Mutation('certificates that are read again change nothing', f'{LOCK}/tls_pump.cc', 'context_ = *std::move(context);', '', PUMP_TEST),
    Mutation('a change of the key is not seen', f'{LOCK}/certificates.cc', '{files.tls_cert, files.tls_key, files.tls_ca}', '{files.tls_cert, files.tls_ca}',
             CERTIFICATES_TEST),
    Mutation('a certificate of another CA is not noticed at home', f'{LOCK}/certificates.cc', 'X509_verify_cert(check.get()) == 1', 'true',
             CERTIFICATES_TEST),
    Mutation('a key of another certificate is not noticed', f'{LOCK}/certificates.cc', 'X509_check_private_key(own[0].get(), key.get()) != 1', 'false',
             CERTIFICATES_TEST),
    Mutation('a key that others read is taken', f'{LOCK}/certificates.cc', 'ReadSecretFile(path, "the private key", kLargestKeyFile)', 'ReadFile(path)',
             CERTIFICATES_TEST),
    Mutation('a damaged certificate behind a good one is left out', f'{LOCK}/certificates.cc', 'is_whole && !certificates.empty()', '!certificates.empty()',
             CERTIFICATES_TEST),
    Mutation('certificates alone let every password in', 'rendezvous/web/password.cc', 'if (join_token.empty()) return false;', '', PASSWORD_TEST),
    Mutation('half an end ends both directions', f'{LOCK}/tls_pipe.cc', 'if (told_plain_ && told_socket_)', 'if (told_plain_ || told_socket_)', PUMP_TEST),
    Mutation('a handshake may hang for ever', f'{LOCK}/tls_pump.cc', 'SetDeadline(added, Clock::Real().Now() + options_.handshake_limit);', '', PUMP_TEST),
    Mutation('the last words are lost when the pump ends', f'{LOCK}/tls_pump.cc', '    SayFarewell();\n', '', PUMP_TEST),
    Mutation('plain gRPC gets through a locked door', FRONT, 'protocol == Protocol::kTls || protocol == Protocol::kStore;',
             'protocol != Protocol::kHttp;', FRONT_TEST),
    Mutation('a guest speaks gRPC', FRONT, 'protocol == Protocol::kGrpc && origin != Origin::kMember', 'false', FRONT_TEST),
    Mutation('a member speaks TCPStore within TLS', FRONT, 'if (!is_known) return', 'if (!is_known && !is_locked) return', FRONT_TEST),
    Mutation('the store takes clients from anywhere', 'rendezvous/server/server.cc', 'tls_ != nullptr && !tls_->HasMemberAt(OtherHost(fd.get()))', 'false',
             '//rendezvous/server:server_test'),
    Mutation('an empty password opens the page', 'rendezvous/web/password.cc', 'return is_join || is_read;', 'return is_join || is_read || password.empty();',
             PASSWORD_TEST),
    Mutation('any page is as open as /healthz', 'rendezvous/web/password.cc', 'request.path == "/healthz"', 'request.path[0] == \'/\'', PASSWORD_TEST),
]

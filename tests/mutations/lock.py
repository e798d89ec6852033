"""Bugs planted in the lock of the rendezvous' door."""

from planting import Mutation

LOCK = 'rendezvous/lock'
TOKEN_TEST = f'//{LOCK}:token_test'
PUMP_TEST = f'//{LOCK}:tls_pump_test'
FRONT = 'rendezvous/server/front.cc'
FRONT_TEST = '//rendezvous/server:front_test'
PASSWORD_TEST = '//rendezvous/web:password_test'

MUTATIONS = [
    Mutation('a token that everybody reads is taken', f'{LOCK}/token.cc', '(facts.st_mode & S_IROTH) != 0', 'false', TOKEN_TEST),
    Mutation('a token that the group reads is taken', f'{LOCK}/token.cc', '(facts.st_mode & S_IRGRP) != 0', 'false', TOKEN_TEST),
    Mutation('the variable stays in the memory of the environment', f'{LOCK}/token.cc', 'OPENSSL_cleanse(value, token.size());', '', TOKEN_TEST),
    Mutation('workers get the variable', f'{LOCK}/token.cc', 'unsetenv(kTokenVariable);', '', TOKEN_TEST),
    Mutation('all secrets of a token are the same', f'{LOCK}/token.cc', 'reinterpret_cast<const unsigned char*>(purpose.data()), purpose.size()',
             'reinterpret_cast<const unsigned char*>(purpose.data()), 0', TOKEN_TEST),
    Mutation('any certificate is a member', f'{LOCK}/tls_context.cc', 'return is_equal ? 1 : 0;', 'return 1;', PUMP_TEST),
    Mutation('all tokens have the same key', f'{LOCK}/tls_context.cc', 'BN_add_word(secret.get(), 1) == 1', 'BN_set_word(secret.get(), 7) == 1',
             PUMP_TEST),
    Mutation('a guest is a member', f'{LOCK}/tls_context.cc', 'return SSL_get0_peer_certificate(connection) != nullptr;', 'return connection != nullptr;',
             PUMP_TEST),
    Mutation('a client does not wait for the welcome', f'{LOCK}/tls_pipe.cc', 'if (side_ == TlsContext::Side::kServer) return OpenPlain();',
             'return OpenPlain();', PUMP_TEST),
    Mutation('half an end ends both directions', f'{LOCK}/tls_pipe.cc', 'if (told_plain_ && told_socket_)', 'if (told_plain_ || told_socket_)', PUMP_TEST),
    Mutation('a handshake may hang for ever', f'{LOCK}/tls_pump.cc', 'SetDeadline(added, Clock::Real().Now() + options_.handshake_limit);', '', PUMP_TEST),
    Mutation('the last words are lost when the pump ends', f'{LOCK}/tls_pump.cc', '    SayFarewell();\n', '', PUMP_TEST),
    Mutation('plain gRPC gets through a locked door', FRONT, 'protocol == Protocol::kTls || protocol == Protocol::kStore;',
             'protocol != Protocol::kHttp;', FRONT_TEST),
    Mutation('a guest speaks gRPC', FRONT, 'protocol == Protocol::kGrpc && origin == Origin::kGuest', 'false', FRONT_TEST),
    Mutation('a member speaks TCPStore within TLS', FRONT, 'if (!is_known) return', 'if (!is_known && !is_locked) return', FRONT_TEST),
    Mutation('the store takes clients from anywhere', 'rendezvous/server/server.cc', 'tls_ != nullptr && !tls_->HasMemberAt(OtherHost(fd.get()))', 'false',
             '//rendezvous/server:server_test'),
    Mutation('an empty password opens the page', 'rendezvous/web/password.cc', 'return is_join || is_read;', 'return is_join || is_read || password.empty();',
             PASSWORD_TEST),
    Mutation('any page is as open as /healthz', 'rendezvous/web/password.cc', 'request.path == "/healthz"', 'request.path[0] == \'/\'', PASSWORD_TEST),
]

// The secrets and certificates by which the processes of a run take each other.
#pragma once

#include <string>

namespace convene::rendezvous {

// A door is locked by a join token, by certificates, or by both: then a member has to have both.
struct Credentials {
  std::string join_token;  // token.h; "": none
  // Files in PEM, all three or none: this process's certificate (with the certificates between it
  // and the CA behind it, where there are any), its private key, and the certificates of the CAs
  // by which it takes others. Read again when they change.
  std::string tls_cert;
  std::string tls_key;
  std::string tls_ca;

  bool has_certificates() const { return !tls_cert.empty(); }
  bool empty() const { return join_token.empty() && !has_certificates(); }
};

}  // namespace convene::rendezvous

// Owners of OpenSSL's objects.
#pragma once

#include <openssl/evp.h>
#include <openssl/x509.h>

#include <memory>

namespace convene::rendezvous {

template <auto* kFree>
struct Freer {
  template <typename T>
  void operator()(T* object) const {
    kFree(object);
  }
};
template <typename T, auto* kFree>
using Owned = std::unique_ptr<T, Freer<kFree>>;
using OwnedKey = Owned<EVP_PKEY, EVP_PKEY_free>;
using OwnedCertificate = Owned<X509, X509_free>;

}  // namespace convene::rendezvous

// A CA for tests, and certificates by it.
#pragma once

#include <string>

#include "absl/time/time.h"
#include "rendezvous/lock/credentials.h"
#include "rendezvous/lock/openssl_owned.h"

namespace convene::rendezvous {

// Keys on P-256. Aborts where OpenSSL does.
class TestCa {
 public:
  TestCa() : TestCa("test CA", nullptr) {}
  // Another CA, by this one.
  TestCa Below() const { return TestCa("test CA below", this); }
  static TestCa Expired() { return TestCa("old CA", nullptr, -absl::Minutes(1)); }

  struct Wish {
    std::string names = "IP:127.0.0.1";      // subjectAltName, as openssl.cnf writes it
    absl::Duration begin = -absl::Hours(1);  // from now
    absl::Duration end = absl::Hours(1);
  };
  // Writes cert.pem, key.pem (0600) and ca.pem into the directory, in place of those that are
  // there.
  Credentials Issue(const std::string& directory, const Wish& wish) const;
  Credentials Issue(const std::string& directory) const { return Issue(directory, Wish()); }

 private:
  // `above` null: by itself. `end`: from now.
  TestCa(const std::string& name, const TestCa* above, absl::Duration end = absl::Hours(9));

  OwnedKey key_;
  OwnedCertificate certificate_;
};

}  // namespace convene::rendezvous

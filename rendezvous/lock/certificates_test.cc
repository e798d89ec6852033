#include "rendezvous/lock/certificates.h"

#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rendezvous/lock/credentials.h"
#include "rendezvous/lock/testing/test_ca.h"
#include "tools/base/clock.h"
#include "tools/base/files.h"
#include "tools/base/testing/status_testing.h"
#include "tools/base/testing/temp_dir.h"

namespace convene::rendezvous {
namespace {

absl::Status Use(const Credentials& files) {
  const std::unique_ptr<SSL_CTX, Freer<SSL_CTX_free>> context(SSL_CTX_new(TLS_method()));
  return UseCertificates(files, context.get()).status();
}

void CheckRefused(const Credentials& files, const std::string& file, const std::string& word) {
  CHECK_STATUS(Use(files), absl::StatusCode::kInvalidArgument, word);
  CHECK_STATUS(Use(files), absl::StatusCode::kInvalidArgument, file);
}

TEST_CASE("a certificate, its key and its CA are taken") {
  const testing::TempDir directory;
  CHECK_OK(Use(TestCa().Issue(directory.path())));
  CHECK_OK(Use(TestCa().Below().Issue(directory.path())));  // without the root
}

TEST_CASE("a certificate that the others would not take is refused at home") {
  const testing::TempDir directory;
  const TestCa ca;
  const auto with = [&](absl::Duration begin, absl::Duration end) {
    return ca.Issue(directory.path(), {.begin = begin, .end = end});
  };
  CheckRefused(with(-absl::Hours(2), -absl::Hours(1)), "/cert.pem", "has expired");
  CheckRefused(with(absl::Hours(1), absl::Hours(2)), "/cert.pem", "clock");
  Credentials files = ca.Issue(directory.path());
  const testing::TempDir elsewhere;
  files.tls_ca = TestCa().Issue(elsewhere.path()).tls_ca;
  CheckRefused(files, "/cert.pem", "not of a CA in --tls-ca");
}

TEST_CASE("a CA that has expired is named, and not the certificate by it") {
  const testing::TempDir directory;
  CheckRefused(TestCa::Expired().Issue(directory.path()), "/cert.pem",
               "the CA \"CN = old CA\" above the certificate in ");
}

TEST_CASE("files that are not what they should be are named") {
  const testing::TempDir directory, elsewhere;
  const TestCa ca;
  const Credentials files = ca.Issue(directory.path());
  Credentials given = files;
  std::swap(given.tls_cert, given.tls_key);
  CHECK_OK(Use(files));
  CheckRefused(given, "/key.pem", "swapped");
  given = files;
  given.tls_key = files.tls_cert;
  REQUIRE(chmod(files.tls_cert.c_str(), 0600) == 0);
  CheckRefused(given, "/cert.pem", "swapped");
  given.tls_key = ca.Issue(elsewhere.path()).tls_key;
  CheckRefused(given, elsewhere.path(), "is not that of the certificate");
  given = files;
  given.tls_ca = absl::StrCat(directory.path(), "/text");
  REQUIRE_OK(WriteFileAtomic(given.tls_ca, "no certificate\n"));
  CheckRefused(given, "/text", "--tls-ca");
  const auto good = ReadFile(files.tls_ca);
  REQUIRE_OK(good);
  REQUIRE_OK(WriteFileAtomic(
      given.tls_ca,
      absl::StrCat(*good, "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")));
  CheckRefused(given, "/text", "damaged");
  given.tls_ca = absl::StrCat(directory.path(), "/none");
  CHECK_STATUS(Use(given), absl::StatusCode::kNotFound, "/none");
}

TEST_CASE("a certificate is good until it ends, or one that vouches for it") {
  const testing::TempDir directory;
  const auto left = [&](absl::Duration end) {
    const std::unique_ptr<SSL_CTX, Freer<SSL_CTX_free>> context(SSL_CTX_new(TLS_method()));
    const auto until =
        UseCertificates(TestCa().Issue(directory.path(), {.end = end}), context.get());
    REQUIRE_OK(until);
    return *until - WallNow();
  };
  CHECK(left(absl::Hours(2)) > absl::Minutes(119));
  CHECK(left(absl::Hours(2)) < absl::Minutes(121));
  CHECK(left(absl::Hours(99)) < absl::Hours(10));  // the CA's
}

TEST_CASE("files for another program are looked at, and no CA vouches for the certificate") {
  constexpr FileFlags kFlags = {"--its-cert", "--its-key", "--its-ca"};
  const testing::TempDir directory, elsewhere;
  const TestCa ca;
  Credentials files = ca.Issue(directory.path());
  files.tls_ca = TestCa().Issue(elsewhere.path()).tls_ca;
  CHECK_OK(CheckFiles(files, kFlags));
  CHECK_OK(CheckFiles({.tls_ca = files.tls_ca}, kFlags));
  const auto refused = [&](const Credentials& given, const char* words) {
    CHECK_STATUS(CheckFiles(given, kFlags), absl::StatusCode::kInvalidArgument, words);
  };
  Credentials given = files;
  std::swap(given.tls_cert, given.tls_key);
  refused(given, "were --its-cert and --its-key swapped?");
  given = files;
  given.tls_key = absl::StrCat(elsewhere.path(), "/key.pem");
  refused(given, "is not that of the certificate");
  refused({.tls_ca = files.tls_key}, "--its-ca: ");
  refused(ca.Issue(directory.path(), {.begin = -absl::Hours(2), .end = -absl::Hours(1)}),
          "has expired");
  refused(ca.Issue(directory.path(), {.begin = absl::Hours(1), .end = absl::Hours(2)}),
          "not valid yet");
}

TEST_CASE("a key that others may read is refused") {
  const testing::TempDir directory;
  const Credentials files = TestCa().Issue(directory.path());
  for (const mode_t mode : {0640, 0604, 0644}) {
    REQUIRE(chmod(files.tls_key.c_str(), mode) == 0);
    CHECK_STATUS(Use(files), absl::StatusCode::kPermissionDenied,
                 absl::StrCat("chmod 600 ", files.tls_key));
  }
}

TEST_CASE("each file that is replaced changes the stamp") {
  const testing::TempDir directory;
  const TestCa ca;
  const Credentials files = ca.Issue(directory.path());
  CHECK(StampOf(files) == StampOf(files));
  for (const std::string& path : {files.tls_cert, files.tls_key, files.tls_ca}) {
    const std::string before = StampOf(files);
    REQUIRE_OK(WriteFileAtomic(path, "another"));
    CHECK(StampOf(files) != before);
    REQUIRE(unlink(path.c_str()) == 0);
    CHECK(StampOf(files) != before);
  }
}

}  // namespace
}  // namespace convene::rendezvous

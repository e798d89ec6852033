#include "rendezvous/lock/testing/test_ca.h"

#include <openssl/bio.h>
#include <openssl/ec.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <sys/stat.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "tools/base/check.h"
#include "tools/base/files.h"

namespace convene::rendezvous {
namespace {

using OwnedBio = Owned<BIO, BIO_free>;

void AddExtension(X509* certificate, int kind, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, certificate, certificate, nullptr, nullptr, 0);
  const Owned<X509_EXTENSION, X509_EXTENSION_free> extension(
      X509V3_EXT_conf_nid(nullptr, &context, kind, value.c_str()));
  CONVENE_CHECK(extension != nullptr && X509_add_ext(certificate, extension.get(), -1) == 1);
}

// Not signed yet.
OwnedCertificate Draft(EVP_PKEY* key, const std::string& name, const TestCa::Wish& wish) {
  static long serial = 0;
  OwnedCertificate certificate(X509_new());
  X509_set_version(certificate.get(), X509_VERSION_3);
  ASN1_INTEGER_set(X509_get_serialNumber(certificate.get()), ++serial);
  X509_gmtime_adj(X509_getm_notBefore(certificate.get()), absl::ToInt64Seconds(wish.begin));
  X509_gmtime_adj(X509_getm_notAfter(certificate.get()), absl::ToInt64Seconds(wish.end));
  X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate.get()), "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0);
  X509_set_pubkey(certificate.get(), key);
  return certificate;
}

template <typename Writer>
std::string Pem(Writer write) {
  const OwnedBio bio(BIO_new(BIO_s_mem()));
  CONVENE_CHECK(write(bio.get()) == 1);
  char* text = nullptr;
  const long size = BIO_get_mem_data(bio.get(), &text);
  return std::string(text, static_cast<size_t>(size));
}

}  // namespace

TestCa::TestCa(const std::string& name, const TestCa* above, absl::Duration end)
    : key_(EVP_EC_gen("P-256")), certificate_(Draft(key_.get(), name, {.end = end})) {
  const TestCa& issuer = above == nullptr ? *this : *above;
  X509_set_issuer_name(certificate_.get(), X509_get_subject_name(issuer.certificate_.get()));
  AddExtension(certificate_.get(), NID_basic_constraints, "critical,CA:TRUE");
  CONVENE_CHECK(X509_sign(certificate_.get(), issuer.key_.get(), EVP_sha256()) != 0);
}

Credentials TestCa::Issue(const std::string& directory, const Wish& wish) const {
  const OwnedKey key(EVP_EC_gen("P-256"));
  const OwnedCertificate certificate = Draft(key.get(), "node", wish);
  X509_set_issuer_name(certificate.get(), X509_get_subject_name(certificate_.get()));
  AddExtension(certificate.get(), NID_subject_alt_name, wish.names);
  CONVENE_CHECK(X509_sign(certificate.get(), key_.get(), EVP_sha256()) != 0);
  Credentials files{.tls_cert = absl::StrCat(directory, "/cert.pem"),
                    .tls_key = absl::StrCat(directory, "/key.pem"),
                    .tls_ca = absl::StrCat(directory, "/ca.pem")};
  const auto certificate_of = [](X509* one) {
    return Pem([one](BIO* bio) { return PEM_write_bio_X509(bio, one); });
  };
  CONVENE_CHECK(WriteFileAtomic(files.tls_cert, certificate_of(certificate.get())).ok());
  CONVENE_CHECK(WriteFileAtomic(files.tls_ca, certificate_of(certificate_.get())).ok());
  const std::string pem = Pem([&key](BIO* bio) {
    return PEM_write_bio_PrivateKey(bio, key.get(), nullptr, nullptr, 0, nullptr, nullptr);
  });
  CONVENE_CHECK(WriteFileAtomic(files.tls_key, pem).ok());
  CONVENE_CHECK(chmod(files.tls_key.c_str(), 0600) == 0);
  return files;
}

}  // namespace convene::rendezvous

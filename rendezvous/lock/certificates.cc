#include "rendezvous/lock/certificates.h"

#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509_vfy.h>
#include <sys/stat.h>

#include <algorithm>
#include <ctime>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "rendezvous/lock/openssl_owned.h"
#include "rendezvous/lock/secret_file.h"
#include "tools/base/clock.h"
#include "tools/base/files.h"
#include "tools/base/status_macros.h"

namespace convene::rendezvous {
namespace {

constexpr size_t kLargestKeyFile = 64 * 1024;
constexpr FileFlags kOwnFlags = {"--tls-cert", "--tls-key", "--tls-ca"};

using OwnedBio = Owned<BIO, BIO_free>;
using Certificates = std::vector<OwnedCertificate>;
// Of certificates that others own.
struct FreeList {
  void operator()(STACK_OF(X509) * list) const { sk_X509_free(list); }
};

OwnedBio Reader(const std::string& text) {
  return OwnedBio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

// OpenSSL would ask the terminal for the passphrase.
int NoPassphrase(char*, int, int, void*) { return 0; }

std::string Swapped(const FileFlags& flags) {
  return absl::StrCat(": were ", flags.cert, " and ", flags.key, " swapped?");
}

// One at least. `flag`: of those, the one that named the file.
absl::StatusOr<Certificates> ReadCertificates(const std::string& path, absl::string_view flag,
                                              const FileFlags& flags) {
  const absl::StatusOr<std::string> text = ReadFile(path);
  CONVENE_RETURN_IF_ERROR(Annotate(text.status(), flag));
  const OwnedBio reader = Reader(*text);
  Certificates certificates;
  ERR_clear_error();
  while (X509* const next = PEM_read_bio_X509(reader.get(), nullptr, NoPassphrase, nullptr)) {
    certificates.emplace_back(next);
  }
  // After the last one nothing begins; anything else began and cannot be read.
  const bool is_whole = ERR_GET_REASON(ERR_peek_last_error()) == PEM_R_NO_START_LINE;
  ERR_clear_error();
  if (is_whole && !certificates.empty()) return certificates;
  const bool is_key = certificates.empty() && absl::StrContains(*text, "PRIVATE KEY-----");
  return absl::InvalidArgumentError(
      is_key
          ? absl::StrCat(flag, ": ", path, " has a private key and no certificate", Swapped(flags))
          : absl::StrCat(flag, ": ", path, " has ", is_whole ? "no" : "a damaged",
                         " certificate: it has to be in PEM, with the line "
                         "-----BEGIN CERTIFICATE-----"));
}

absl::StatusOr<OwnedKey> ReadKey(const std::string& path, const FileFlags& flags) {
  absl::StatusOr<std::string> text = ReadSecretFile(path, "the private key", kLargestKeyFile);
  CONVENE_RETURN_IF_ERROR(Annotate(text.status(), flags.key));
  OwnedKey key(PEM_read_bio_PrivateKey(Reader(*text).get(), nullptr, NoPassphrase, nullptr));
  ERR_clear_error();
  const bool is_encrypted = absl::StrContains(*text, "ENCRYPTED");
  const bool is_certificate = absl::StrContains(*text, "BEGIN CERTIFICATE-----");
  OPENSSL_cleanse(text->data(), text->size());
  if (key != nullptr) return key;
  return absl::InvalidArgumentError(absl::StrCat(
      flags.key, ": ", path,
      is_encrypted     ? " has a key with a passphrase, and nobody is there to give it: store the "
                         "key without one, in a file that its owner alone reads"
      : is_certificate ? absl::StrCat(" has a certificate and no private key", Swapped(flags))
                       : " has no private key: it has to be in PEM, with the line "
                         "-----BEGIN PRIVATE KEY-----"));
}

std::string TextIn(BIO* written) {
  char* text = nullptr;
  const long size = BIO_get_mem_data(written, &text);
  return std::string(text, static_cast<size_t>(size));
}

struct Pair {
  Certificates own;  // and those between it and the CA
  OwnedKey key;
};

absl::StatusOr<Pair> ReadPair(const Credentials& files, const FileFlags& flags) {
  CONVENE_ASSIGN_OR_RETURN(Certificates own, ReadCertificates(files.tls_cert, flags.cert, flags));
  CONVENE_ASSIGN_OR_RETURN(OwnedKey key, ReadKey(files.tls_key, flags));
  if (X509_check_private_key(own[0].get(), key.get()) != 1) {
    ERR_clear_error();
    return absl::InvalidArgumentError(absl::StrCat(
        flags.key, ": the key in ", files.tls_key, " is not that of the certificate in ",
        files.tls_cert, ": name the two files that were made together"));
  }
  return Pair{std::move(own), std::move(key)};
}

absl::Time TimeOf(const ASN1_TIME* time) {
  std::tm text = {};
  ASN1_TIME_to_tm(time, &text);
  return absl::FromTM(text, absl::UTCTimeZone());
}

std::string TextOf(const ASN1_TIME* time) {
  const OwnedBio writer(BIO_new(BIO_s_mem()));
  ASN1_TIME_print(writer.get(), time);
  return TextIn(writer.get());
}

std::string SubjectOf(const X509* certificate) {
  const OwnedBio writer(BIO_new(BIO_s_mem()));
  X509_NAME_print_ex(writer.get(), X509_get_subject_name(certificate), 0, XN_FLAG_ONELINE);
  return TextIn(writer.get());
}

std::string Dates(const X509* certificate) {
  return absl::StrCat("valid from ", TextOf(X509_get0_notBefore(certificate)), " until ",
                      TextOf(X509_get0_notAfter(certificate)));
}

// By the clock of this machine, as the others will by theirs. Returns the first end of the chain.
absl::StatusOr<absl::Time> CheckOwn(const Credentials& files, const Certificates& own,
                                    X509_STORE* authorities) {
  const Owned<X509_STORE_CTX, X509_STORE_CTX_free> check(X509_STORE_CTX_new());
  const std::unique_ptr<STACK_OF(X509), FreeList> between(sk_X509_new_null());
  for (size_t i = 1; i < own.size(); ++i) sk_X509_push(between.get(), own[i].get());
  if (X509_STORE_CTX_init(check.get(), authorities, own[0].get(), between.get()) == 1 &&
      X509_verify_cert(check.get()) == 1) {
    const STACK_OF(X509)* const chain = X509_STORE_CTX_get0_chain(check.get());
    absl::Time end = absl::InfiniteFuture();
    for (int i = 0; i < sk_X509_num(chain); ++i) {
      end = std::min(end, TimeOf(X509_get0_notAfter(sk_X509_value(chain, i))));
    }
    return end;
  }
  ERR_clear_error();
  // The certificate at fault: this one, one between, or the CA's.
  const X509* const fault = X509_STORE_CTX_get_current_cert(check.get());
  const X509* const shown = fault == nullptr ? own[0].get() : fault;
  const int error = X509_STORE_CTX_get_error(check.get());
  const bool is_above = shown != own[0].get() && (error == X509_V_ERR_CERT_HAS_EXPIRED ||
                                                  error == X509_V_ERR_CERT_NOT_YET_VALID);
  return absl::InvalidArgumentError(absl::StrCat(
      "--tls-cert: ", is_above ? absl::StrCat("the CA \"", SubjectOf(shown), "\" above ") : "",
      "the certificate in ", files.tls_cert, " ", WhyNotTaken(error), " (--tls-ca ", files.tls_ca,
      "; ", Dates(shown), ")"));
}

}  // namespace

absl::StatusOr<absl::Time> UseCertificates(const Credentials& files, SSL_CTX* context) {
  CONVENE_ASSIGN_OR_RETURN(const Pair pair, ReadPair(files, kOwnFlags));
  const Certificates& own = pair.own;
  CONVENE_ASSIGN_OR_RETURN(const Certificates authorities,
                           ReadCertificates(files.tls_ca, kOwnFlags.ca, kOwnFlags));
  X509_STORE* const store = SSL_CTX_get_cert_store(context);
  // A CA between may stand in --tls-ca without the root that signed it.
  X509_STORE_set_flags(store, X509_V_FLAG_PARTIAL_CHAIN);
  for (const OwnedCertificate& authority : authorities) {
    X509_STORE_add_cert(store, authority.get());
    SSL_CTX_add_client_CA(context, authority.get());  // by it a browser chooses a certificate
  }
  CONVENE_ASSIGN_OR_RETURN(const absl::Time end, CheckOwn(files, own, store));
  bool is_used = SSL_CTX_use_certificate(context, own[0].get()) == 1 &&
                 SSL_CTX_use_PrivateKey(context, pair.key.get()) == 1;
  for (size_t i = 1; i < own.size() && is_used; ++i) {
    is_used = SSL_CTX_add1_chain_cert(context, own[i].get()) == 1;
  }
  if (is_used) return end;
  const char* const reason = ERR_reason_error_string(ERR_get_error());
  ERR_clear_error();
  return absl::InvalidArgumentError(absl::StrCat("--tls-cert: OpenSSL does not take ",
                                                 files.tls_cert, ": ",
                                                 reason == nullptr ? "no reason" : reason));
}

absl::Status CheckFiles(const Credentials& files, const FileFlags& flags) {
  CONVENE_RETURN_IF_ERROR(ReadCertificates(files.tls_ca, flags.ca, flags).status());
  if (!files.has_certificates()) return absl::OkStatus();
  CONVENE_ASSIGN_OR_RETURN(const Pair pair, ReadPair(files, flags));
  const X509* const own = pair.own[0].get();
  const absl::Time now = WallNow();
  const int fault = TimeOf(X509_get0_notAfter(own)) <= now   ? X509_V_ERR_CERT_HAS_EXPIRED
                    : TimeOf(X509_get0_notBefore(own)) > now ? X509_V_ERR_CERT_NOT_YET_VALID
                                                             : X509_V_OK;
  if (fault == X509_V_OK) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(flags.cert, ": the certificate in ",
                                                 files.tls_cert, " ", WhyNotTaken(fault), " (",
                                                 Dates(own), ")"));
}

std::string WhyNotTaken(long verify_result) {
  switch (verify_result) {
    case X509_V_ERR_CERT_HAS_EXPIRED:
      return "has expired: renew it, or set the clock of this machine if it is ahead";
    case X509_V_ERR_CERT_NOT_YET_VALID:
      return "is not valid yet: set the clock of this machine, or of the one that made the "
             "certificate";
    case X509_V_ERR_HOSTNAME_MISMATCH:
    case X509_V_ERR_IP_ADDRESS_MISMATCH:
      return "is not for this address: make one that has the name or the IP address";
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT:
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY:
    case X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE:
    case X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN:
    case X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT:
    case X509_V_ERR_CERT_SIGNATURE_FAILURE:
      return "is not of a CA in --tls-ca";
    case X509_V_ERR_APPLICATION_VERIFICATION:  // TlsContext's, of a token's certificate
      return "follows from another join token";
    default:
      return absl::StrCat("is not right: ", X509_verify_cert_error_string(verify_result));
  }
}

std::string StampOf(const Credentials& files) {
  std::string stamp;
  for (const std::string& path : {files.tls_cert, files.tls_key, files.tls_ca}) {
    struct stat facts = {};
    if (!path.empty() && stat(path.c_str(), &facts) != 0) facts = {};
    absl::StrAppend(&stamp, facts.st_ino, " ", facts.st_size, " ", facts.st_mtim.tv_sec, " ",
                    facts.st_mtim.tv_nsec, " ", facts.st_mode, "\n");
  }
  return stamp;
}

}  // namespace convene::rendezvous

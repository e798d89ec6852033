// Certificates of a CA: read from files, and looked at before anything depends on them.
#pragma once

#include <openssl/ssl.h>

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "rendezvous/lock/credentials.h"

namespace convene::rendezvous {

// Gives `context` the certificate, the key and the CAs of the files (Credentials). Each text names
// the file and what to do: NotFound and the system's other errors; PermissionDenied where others
// may read the key; InvalidArgument for content that is none (swapped files too), a key that is not
// the certificate's, and a certificate that the CAs do not vouch for now: expired, not valid yet,
// of another CA. Returns the time until which they vouch for it: the first end of a certificate of
// the chain, the CA's own too. REQUIRES: files.has_certificates().
absl::StatusOr<absl::Time> UseCertificates(const Credentials& files, SSL_CTX* context);

// The flags that name the files, for the texts.
struct FileFlags {
  absl::string_view cert, key, ca;
};

// Looks likewise at files for another program: no CA needs to vouch for the certificate, because
// `tls_ca` is for that program's. Without a certificate it looks at the CAs alone.
absl::Status CheckFiles(const Credentials& files, const FileFlags& flags);

// PURE. Why a certificate was not taken. `verify_result`: X509_V_ERR_..., of verify(1).
std::string WhyNotTaken(long verify_result);

// A text that differs once one of the files was written or replaced; of files that are not there
// too.
std::string StampOf(const Credentials& files);

}  // namespace convene::rendezvous

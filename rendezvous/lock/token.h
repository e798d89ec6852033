// The join token: the secret that the members of a run share, and that others have not.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace convene::rendezvous {

// 128 random bits in base64. The token is the only secret, and whoever reaches the port may try
// guesses at home, so it has to be random: `openssl rand -base64 32`.
inline constexpr size_t kShortestToken = 22;
inline constexpr size_t kLongestToken = 1024;

// The token in the file, without the newline at its end. NotFound and the system's other errors;
// PermissionDenied where the file's group or others may read it; InvalidArgument where the content
// cannot be a token: too short, too long, a newline or another control character within. The text
// names the file and what to do, and has nothing of the content.
absl::StatusOr<std::string> ReadTokenFile(const std::string& path);

inline constexpr char kTokenVariable[] = "CONVENE_JOIN_TOKEN";
// The variable's value, "" where it is not set. After that it is set no more, and its bytes are
// gone from the memory that /proc/PID/environ shows. REQUIRES: no other thread reads the
// environment.
std::string TakeTokenVariable();

// PURE. InvalidArgument as above. `source`: where the token came from, for the text.
absl::Status CheckToken(absl::string_view token, absl::string_view source);

// PURE. The read token: a second secret that follows from the token, as hexadecimal digits, for
// people and programs that only look. It is the password of the pages, and in the place of the
// join token it makes a reader (TlsPeer). The token does not follow from it.
std::string ReadToken(absl::string_view token);

// PURE. HMAC-SHA256 of `purpose` with the token as the key: 32 bytes. RFC 2104; one key for several
// purposes as HKDF's info has it (RFC 5869, 3.2).
std::string DeriveSecret(absl::string_view token, absl::string_view purpose);

// Whether both are equal, in a time that does not depend on where they differ.
bool SecretsEqual(absl::string_view given, absl::string_view right);

}  // namespace convene::rendezvous

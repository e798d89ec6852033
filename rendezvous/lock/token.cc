#include "rendezvous/lock/token.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <algorithm>
#include <cstdlib>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "rendezvous/lock/secret_file.h"
#include "tools/base/check.h"
#include "tools/base/status_macros.h"

namespace convene::rendezvous {
namespace {

constexpr char kHowToMake[] = "make one with: (umask 077; openssl rand -base64 32 >FILE)";

}  // namespace

absl::Status CheckToken(absl::string_view token, absl::string_view source) {
  if (token.size() < kShortestToken) {
    return absl::InvalidArgumentError(absl::StrCat("the join token in ", source, " has ",
                                                   token.size(), " characters, and ",
                                                   kShortestToken, " are the least: ", kHowToMake));
  }
  if (token.size() > kLongestToken) {
    return absl::InvalidArgumentError(absl::StrCat("the join token in ", source, " has more than ",
                                                   kLongestToken, " characters: ", kHowToMake));
  }
  if (!std::all_of(token.begin(), token.end(), absl::ascii_isgraph)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the join token in ", source,
        " has a newline, a space or another character that is not visible ASCII within:"
        " it has to be one line; ",
        kHowToMake));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadTokenFile(const std::string& path) {
  CONVENE_ASSIGN_OR_RETURN(std::string token,
                           ReadSecretFile(path, "the join token", kLongestToken + 2));
  if (!token.empty() && token.back() == '\n') token.pop_back();
  CONVENE_RETURN_IF_ERROR(CheckToken(token, path));
  return token;
}

std::string TakeTokenVariable() {
  char* const value = std::getenv(kTokenVariable);
  if (value == nullptr) return "";
  std::string token = value;
  OPENSSL_cleanse(value, token.size());
  unsetenv(kTokenVariable);
  return token;
}

std::string DeriveSecret(absl::string_view token, absl::string_view purpose) {
  std::string secret(EVP_MAX_MD_SIZE, '\0');
  unsigned int size = 0;
  CONVENE_CHECK(HMAC(EVP_sha256(), token.data(), static_cast<int>(token.size()),
                     reinterpret_cast<const unsigned char*>(purpose.data()), purpose.size(),
                     reinterpret_cast<unsigned char*>(secret.data()), &size) != nullptr);
  secret.resize(size);
  return secret;
}

std::string ReadToken(absl::string_view token) {
  return absl::BytesToHexString(DeriveSecret(token, "convene read token 1")).substr(0, 32);
}

bool SecretsEqual(absl::string_view given, absl::string_view right) {
  // Of equal length whatever was given.
  const std::string a = DeriveSecret("convene", given);
  const std::string b = DeriveSecret("convene", right);
  return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace convene::rendezvous

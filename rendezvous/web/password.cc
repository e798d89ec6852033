#include "rendezvous/web/password.h"

#include <memory>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "rendezvous/lock/token.h"

namespace convene::rendezvous {
namespace {

// The password in the header Authorization; "" where the header has another form.
std::string PasswordOf(absl::string_view header) {
  constexpr absl::string_view kBasic = "Basic ";
  constexpr absl::string_view kBearer = "Bearer ";
  if (absl::StartsWithIgnoreCase(header, kBearer))
    return std::string(header.substr(kBearer.size()));
  std::string decoded;
  if (!absl::StartsWithIgnoreCase(header, kBasic) ||
      !absl::Base64Unescape(header.substr(kBasic.size()), &decoded)) {
    return "";
  }
  const size_t colon = decoded.find(':');
  return colon == std::string::npos ? "" : decoded.substr(colon + 1);
}

}  // namespace

bool MayLook(const HttpRequest& request, const Credentials& credentials) {
  if (credentials.empty() || request.path == "/healthz") return true;
  const std::string& join_token = credentials.join_token;
  if (join_token.empty()) return false;
  const std::string password = PasswordOf(request.authorization);
  // Both, so that the time tells nothing.
  const bool is_join = SecretsEqual(password, join_token);
  const bool is_read = SecretsEqual(password, ReadToken(join_token));
  return is_join || is_read;
}

HttpResponse AskForPassword() {
  HttpResponse response;
  response.code = 401;
  response.body = std::make_shared<const std::string>(
      "This daemon is locked. Show a certificate of its CA, where it has one; its password for "
      "people is what `convene read-token` prints, where it has a join token.\n");
  response.headers = "WWW-Authenticate: Basic realm=\"convene\", charset=\"UTF-8\"\r\n";
  return response;
}

}  // namespace convene::rendezvous

#include "rendezvous/web/password.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "rendezvous/lock/token.h"

namespace convene::rendezvous {
namespace {

// Of wrong passwords in the form.
constexpr absl::Duration kForgottenAfter = absl::Seconds(1);
constexpr int kMostWrong = 10;
// No browser asks for a password of its own by it.
constexpr char kBearerChallenge[] = "WWW-Authenticate: Bearer realm=\"convene\"\r\n";

HttpResponse Form(int code, absl::string_view remark, absl::string_view headers) {
  return {.code = code,
          .content_type = "text/html; charset=utf-8",
          .body = std::make_shared<const std::string>(absl::StrCat(
              "<!DOCTYPE html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n"
              "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
              "<meta name=\"color-scheme\" content=\"light dark\">\n<title>Convene</title>\n"
              "<h1>Convene</h1>\n<p role=\"alert\">",
              remark, "</p>\n<form method=\"post\" action=\"", kLoginPath,
              "\">\n<p><label>The password, which <code>convene read-token</code> prints:<br>"
              "<input type=\"password\" name=\"password\" autocomplete=\"current-password\" "
              "size=\"40\" required autofocus></label>\n<button>Log in</button></p>\n</form>\n")),
          .headers = absl::StrCat(
              "Content-Security-Policy: default-src 'none'; form-action 'self'; base-uri 'none'; "
              "frame-ancestors 'none'\r\nReferrer-Policy: no-referrer\r\n",
              headers)};
}

HttpResponse GoToPage(absl::string_view headers) {
  return {.code = 303,
          .body = std::make_shared<const std::string>("The page is at /\n"),
          .headers = absl::StrCat("Location: /\r\n", headers)};
}

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

bool IsPassword(absl::string_view password, const std::string& join_token) {
  if (join_token.empty()) return false;
  // Both, so that the time tells nothing.
  const bool is_join = SecretsEqual(password, join_token);
  const bool is_read = SecretsEqual(password, ReadToken(join_token));
  return is_join || is_read;
}

// `is_program`: the client may know a password that it was not yet asked for.
HttpResponse AskForPassword(bool is_program) {
  HttpResponse response;
  response.code = 401;
  response.body = std::make_shared<const std::string>(
      "This daemon is locked. Show a certificate of its CA, where it has one; its password for "
      "people is what `convene read-token` prints, where it has a join token.\n");
  response.headers = is_program ? "WWW-Authenticate: Basic realm=\"convene\", charset=\"UTF-8\"\r\n"
                                : kBearerChallenge;
  return response;
}

}  // namespace

bool MayLook(const HttpRequest& request, const Credentials& credentials) {
  return credentials.empty() || request.path == "/healthz" ||
         IsPassword(PasswordOf(request.authorization), credentials.join_token);
}

PasswordDoor::PasswordDoor(Credentials credentials, absl::string_view own_secret)
    : credentials_(std::move(credentials)) {
  if (credentials_.join_token.empty()) return;
  const auto derive = [&](absl::string_view purpose) {
    return absl::BytesToHexString(
        DeriveSecret(credentials_.join_token, absl::StrCat(purpose, own_secret)));
  };
  // The prefix lets browsers take the cookie from this host by TLS alone (RFC 6265bis).
  cookie_name_ = absl::StrCat("__Host-convene-", derive("convene cookie name 1 ").substr(0, 16));
  cookie_value_ = derive("convene cookie 1 ");
}

std::optional<HttpResponse> PasswordDoor::Stop(const HttpRequest& request, MonotonicTime now) {
  if (request.is_post) return LogIn(request, now);
  if (MayLook(request, credentials_) || HasCookie(request.cookie)) {
    return request.path == kLoginPath ? std::optional(GoToPage("")) : std::nullopt;
  }
  if (!cookie_value_.empty() && absl::StrContains(request.accept, "text/html")) {
    return Form(401, "This daemon is locked.", kBearerChallenge);
  }
  // The page's own questions: a browser that asked for a password here would ask over the page.
  return AskForPassword(!absl::StartsWith(request.path, "/api/"));
}

HttpResponse PasswordDoor::LogIn(const HttpRequest& request, MonotonicTime now) {
  if (cookie_value_.empty()) return AskForPassword(false);
  if (forgotten_at_ - now > (kMostWrong - 1) * kForgottenAfter) {
    return Form(429, "Too many wrong passwords: try again in some seconds.", "Retry-After: 2\r\n");
  }
  const auto password = request.form.find("password");
  // Blanks that a terminal's selection has around the password are no part of it.
  if (password == request.form.end() ||
      !IsPassword(absl::StripAsciiWhitespace(password->second), credentials_.join_token)) {
    forgotten_at_ = std::max(forgotten_at_, now) + kForgottenAfter;
    return Form(401, "That is not the password of this daemon.", kBearerChallenge);
  }
  return GoToPage(absl::StrCat("Set-Cookie: ", cookie_name_, "=", cookie_value_,
                               "; Path=/; Secure; HttpOnly; SameSite=Strict\r\n"));
}

bool PasswordDoor::HasCookie(absl::string_view header) const {
  if (cookie_value_.empty()) return false;
  for (const absl::string_view each : absl::StrSplit(header, ';')) {
    const std::pair<absl::string_view, absl::string_view> name_and_value =
        absl::StrSplit(absl::StripAsciiWhitespace(each), absl::MaxSplits('=', 1));
    if (name_and_value.first == cookie_name_) {
      return SecretsEqual(name_and_value.second, cookie_value_);
    }
  }
  return false;
}

}  // namespace convene::rendezvous

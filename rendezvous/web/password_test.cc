#include "rendezvous/web/password.h"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "rendezvous/lock/token.h"

namespace convene::rendezvous {
namespace {

constexpr char kToken[] = "Xz3Vq0k7sT1mN8bYw5Jr2aPf";

bool MayLookWith(const std::string& header, const std::string& path = "/") {
  HttpRequest request;
  request.path = path;
  request.authorization = header;
  return MayLook(request, {.join_token = kToken});
}

std::string Basic(const std::string& user_and_password) {
  return absl::StrCat("Basic ", absl::Base64Escape(user_and_password));
}

TEST_CASE("the token and its read token open the pages, for any user") {
  for (const std::string& password : {std::string(kToken), ReadToken(kToken)}) {
    CHECK(MayLookWith(Basic(absl::StrCat("anna:", password))));
    CHECK(MayLookWith(Basic(absl::StrCat(":", password))));
    CHECK(MayLookWith(absl::StrCat("Bearer ", password)));
    CHECK(MayLookWith(absl::StrCat("bearer ", password)));
  }
}

TEST_CASE("anything else does not") {
  for (const std::string& header : std::vector<std::string>{
           "", "Basic", "Basic ", "Basic !!", "Bearer", "Bearer ", kToken, Basic(kToken),
           Basic(":"), Basic(absl::StrCat(kToken, ":")), Basic(absl::StrCat("a:", kToken, " ")),
           absl::StrCat("Bearer ", kToken, "x"), absl::StrCat("Digest ", kToken)}) {
    INFO(header);
    CHECK(!MayLookWith(header));
  }
  CHECK(MayLookWith("", "/healthz"));
  CHECK(MayLook(HttpRequest(), {}));
  // Certificates and no token: no password is right, not even an empty one.
  HttpRequest request;
  request.path = "/";
  for (const std::string& header : {std::string(), Basic(":"), std::string("Bearer ")}) {
    request.authorization = header;
    CHECK(!MayLook(request, {.tls_cert = "cert.pem"}));
  }
}

const MonotonicTime kNow = MonotonicTime::FromEpoch(absl::Hours(1));

HttpRequest Get(const std::string& path, const std::string& accept,
                const std::string& cookie = "") {
  HttpRequest request;
  request.path = path;
  request.accept = accept;
  request.cookie = cookie;
  return request;
}

HttpResponse Post(PasswordDoor* door, const std::string& password, MonotonicTime now = kNow) {
  HttpRequest request = Get(kLoginPath, "text/html");
  request.is_post = true;
  request.form["password"] = password;
  const auto response = door->Stop(request, now);
  REQUIRE(response.has_value());
  return *response;
}

// "name=value" of the answer to the right password.
std::string CookieOf(PasswordDoor* door) {
  const std::string headers = Post(door, ReadToken(kToken)).headers;
  const size_t begin = headers.find("Set-Cookie: ") + 12;
  return headers.substr(begin, headers.find(';', begin) - begin);
}

bool Opens(PasswordDoor* door, const std::string& cookie) {
  return !door->Stop(Get("/api/jobs", "*/*", cookie), kNow).has_value();
}

TEST_CASE("a browser gets a form, and for the right password a cookie that is no password") {
  PasswordDoor door({.join_token = kToken}, "of this daemon");
  const auto form = door.Stop(Get("/", "text/html,*/*;q=0.8"), kNow);
  REQUIRE(form.has_value());
  CHECK(form->code == 401);
  CHECK_THAT(*form->body, Catch::Contains("method=\"post\" action=\"/login\""));
  CHECK_THAT(form->headers, !Catch::Contains("Basic"));
  for (const std::string& password :
       {std::string(kToken), ReadToken(kToken), absl::StrCat(" ", ReadToken(kToken), "\r\n")}) {
    const HttpResponse response = Post(&door, password);
    CHECK(response.code == 303);
    CHECK_THAT(response.headers, Catch::Contains("Location: /\r\n"));
    CHECK_THAT(response.headers,
               Catch::Contains("; Path=/; Secure; HttpOnly; SameSite=Strict\r\n"));
    CHECK_THAT(response.headers, !Catch::Contains(kToken) && !Catch::Contains(ReadToken(kToken)));
  }
  const std::string cookie = CookieOf(&door);
  CHECK_THAT(cookie, Catch::StartsWith("__Host-convene-"));
  CHECK(Opens(&door, cookie));
  CHECK(Opens(&door, "a=b; " + cookie + ";c"));
  // A browser that comes to the form with the cookie is led on.
  CHECK(door.Stop(Get(kLoginPath, "text/html", cookie), kNow)->code == 303);
  CHECK_FALSE(MayLookWith("Bearer " + cookie.substr(cookie.find('=') + 1)));
}

TEST_CASE("no other cookie opens, nor one of another daemon or another token") {
  PasswordDoor door({.join_token = kToken}, "of this daemon");
  PasswordDoor second({.join_token = kToken}, "of that daemon");
  PasswordDoor other({.join_token = "Xz3Vq0k7sT1mN8bYw5Jr2aPg"}, "of this daemon");
  const std::string cookie = CookieOf(&door);
  const std::string name = cookie.substr(0, cookie.find('='));
  const std::string value = cookie.substr(cookie.find('=') + 1);
  for (const std::string& wrong : std::vector<std::string>{
           "", name, name + "=", value, "=" + value, "x" + cookie, cookie + "0",
           name + "=" + kToken, name + "=" + ReadToken(kToken), name + "= ; x=" + value,
           name + "=x; " + cookie, cookie.substr(0, cookie.size() - 1), "\"" + cookie + "\"",
           std::string(8000, ';')}) {
    INFO(wrong);
    CHECK_FALSE(Opens(&door, wrong));
  }
  CHECK_FALSE(Opens(&second, cookie));
  CHECK_FALSE(Opens(&other, cookie));
  // Both stand in one browser, which keeps one cookie of a name for all ports of a host.
  CHECK(CookieOf(&second).substr(0, name.size()) != name);
  PasswordDoor certificates({.tls_cert = "cert.pem"}, "of this daemon");
  CHECK_FALSE(Opens(&certificates, "="));
  CHECK(Post(&certificates, "").code == 401);
}

TEST_CASE("wrong passwords in the form are taken ten at once and then one a second") {
  PasswordDoor door({.join_token = kToken}, "of this daemon");
  for (int i = 0; i < 10; ++i) CHECK(Post(&door, i % 2 == 0 ? "" : "guess").code == 401);
  // Not even the right one is looked at; cookies and programs are not concerned.
  const HttpResponse late = Post(&door, kToken);
  CHECK(late.code == 429);
  CHECK_THAT(late.headers, Catch::Contains("Retry-After: ") && !Catch::Contains("Set-Cookie"));
  HttpRequest program = Get("/metrics", "");
  program.authorization = Basic(absl::StrCat("a:", kToken));
  CHECK_FALSE(door.Stop(program, kNow).has_value());
  CHECK(Post(&door, "guess", kNow + absl::Seconds(1)).code == 401);
  CHECK(Post(&door, "guess", kNow + absl::Seconds(1)).code == 429);
  CHECK(Post(&door, kToken, kNow + absl::Seconds(2)).code == 303);
}

TEST_CASE("programs are asked for their password, and the page's script is not") {
  PasswordDoor door({.join_token = kToken}, "of this daemon");
  CHECK_THAT(door.Stop(Get("/metrics", "*/*"), kNow)->headers, Catch::Contains("Basic realm"));
  const auto asked = door.Stop(Get("/api/jobs", "*/*"), kNow);
  CHECK(asked->code == 401);
  CHECK_THAT(asked->headers, !Catch::Contains("Basic"));
  CHECK_FALSE(door.Stop(Get("/healthz", "text/html"), kNow).has_value());
}

}  // namespace
}  // namespace convene::rendezvous

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
  CHECK(AskForPassword().code == 401);
}

}  // namespace
}  // namespace convene::rendezvous

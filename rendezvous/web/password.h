// The password of the pages of a locked daemon, and the cookie that a browser has in its place.
#pragma once

#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "rendezvous/lock/credentials.h"
#include "rendezvous/web/http_request.h"
#include "rendezvous/web/http_server.h"
#include "tools/base/clock.h"

namespace convene::rendezvous {

// PURE. Whether the request has the right password: the join token or its ReadToken (lock/token.h),
// as that of any user (Basic, RFC 7617) or as a token (Bearer, RFC 6750). /healthz needs none, and
// nothing does where `credentials` are empty. Without a token no password is right: a client shows
// a certificate then, and is not asked here.
bool MayLook(const HttpRequest& request, const Credentials& credentials);

// PURE. Takes clients that come without a certificate. A program shows the password with each
// request. A browser gets a form, which it posts to kLoginPath, and then has a cookie: a secret
// that follows from the token and from this door, so that it opens no other daemon and nothing
// after this one. The door is reached by TLS alone. Not thread-safe.
class PasswordDoor {
 public:
  // `own_secret`: of this daemon alone, random.
  PasswordDoor(Credentials credentials, absl::string_view own_secret);

  // nullopt: the request may look. Else the answer: 401 asks for the password, 303 follows the
  // right one, 429 follows the eleventh wrong one in the form (one a second is forgotten), until
  // which no more are looked at.
  std::optional<HttpResponse> Stop(const HttpRequest& request, MonotonicTime now);

 private:
  HttpResponse LogIn(const HttpRequest& request, MonotonicTime now);
  bool HasCookie(absl::string_view header) const;

  const Credentials credentials_;
  std::string cookie_name_;     // of this daemon: browsers keep one cookie for all ports of a host
  std::string cookie_value_;    // "": none is right
  MonotonicTime forgotten_at_;  // when all wrong passwords are
};

}  // namespace convene::rendezvous

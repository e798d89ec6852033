// The password of the pages of a locked daemon.
#pragma once

#include <string>

#include "rendezvous/lock/credentials.h"
#include "rendezvous/web/http_request.h"
#include "rendezvous/web/http_server.h"

namespace convene::rendezvous {

// PURE. Whether the request has the right password: the join token or its ReadToken (lock/token.h),
// as that of any user (Basic, RFC 7617), which a browser asks people for, or as a token (Bearer,
// RFC 6750). /healthz needs none, and nothing does where `credentials` are empty. Without a token
// no password is right: a client shows a certificate then, and is not asked here.
bool MayLook(const HttpRequest& request, const Credentials& credentials);

// 401, with a challenge by which a browser asks for the password.
HttpResponse AskForPassword();

}  // namespace convene::rendezvous

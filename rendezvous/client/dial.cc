#include "rendezvous/client/dial.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "grpcpp/create_channel_posix.h"
#include "tools/base/backoff.h"
#include "tools/base/random.h"
#include "tools/base/status_macros.h"

namespace convene::rendezvous {
namespace {

constexpr absl::Duration kLongestConnect = absl::Seconds(5);
constexpr int kLongestReplyBytes = 64 * 1024 * 1024;

struct HostPort {
  std::string host;
  int port = 0;
};

// "host:port", "[v6]:port".
absl::StatusOr<HostPort> Split(const std::string& endpoint) {
  const size_t colon = endpoint.rfind(':');
  HostPort result;
  const bool is_valid = colon != std::string::npos &&
                        absl::SimpleAtoi(endpoint.substr(colon + 1), &result.port) &&
                        result.port > 0 && result.port < 65536;
  if (is_valid) {
    result.host = endpoint.substr(0, colon);
    if (result.host.size() > 2 && result.host.front() == '[' && result.host.back() == ']') {
      result.host = result.host.substr(1, result.host.size() - 2);
    }
    if (!result.host.empty()) return result;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("rendezvous endpoint \"", endpoint, "\" is not host:port, such as node0:29400"));
}

absl::Status ConnectOne(const addrinfo& address, MonotonicTime deadline, UniqueFd* connected) {
  UniqueFd socket(::socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.valid()) return ErrnoStatus(errno, "socket");
  if (connect(socket.get(), address.ai_addr, address.ai_addrlen) != 0) {
    if (errno != EINPROGRESS) return ErrnoStatus(errno, "connect");
    pollfd waiting = {socket.get(), POLLOUT, 0};
    int ready = 0;
    do {
      const absl::Duration left = std::min(deadline - Clock::Real().Now(), kLongestConnect);
      ready = poll(&waiting, 1,
                   static_cast<int>(std::max<int64_t>(0, absl::ToInt64Milliseconds(left))));
    } while (ready < 0 && errno == EINTR);
    if (ready == 0) return absl::DeadlineExceededError("connect: no answer");
    int error = 0;
    socklen_t length = sizeof(error);
    getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &length);
    if (error != 0) return ErrnoStatus(error, "connect");
  }
  *connected = std::move(socket);
  return absl::OkStatus();
}

absl::Status TryOnce(const HostPort& target, MonotonicTime deadline, UniqueFd* connected) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error =
      getaddrinfo(target.host.c_str(), std::to_string(target.port).c_str(), &hints, &found);
  if (error != 0) {
    return absl::UnavailableError(
        absl::StrCat("looking up ", target.host, ": ", gai_strerror(error)));
  }
  absl::Status last = absl::UnavailableError("the name has no address");
  for (const addrinfo* address = found; address != nullptr; address = address->ai_next) {
    last = ConnectOne(*address, deadline, connected);
    if (last.ok()) break;
  }
  freeaddrinfo(found);
  return last;
}

}  // namespace

absl::StatusOr<UniqueFd> Dial(const std::string& endpoint, MonotonicTime deadline) {
  CONVENE_ASSIGN_OR_RETURN(const HostPort target, Split(endpoint));
  Backoff backoff(absl::Milliseconds(10), absl::Seconds(1));
  for (;;) {
    UniqueFd connected;
    const absl::Status tried = TryOnce(target, deadline, &connected);
    if (tried.ok()) return connected;
    const absl::Duration left = deadline - Clock::Real().Now();
    if (left <= absl::ZeroDuration()) {
      return absl::UnavailableError(
          absl::StrCat("no rendezvous at ", endpoint, " (", std::string(tried.message()),
                       "): does `convened` or the node that hosts it run there?"));
    }
    Clock::Real().SleepFor(std::min(left, backoff.Next(RandomFraction())));
  }
}

std::shared_ptr<grpc::Channel> ChannelOver(UniqueFd socket, absl::Duration silence) {
  const int on = 1;
  setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  const unsigned int silence_ms = static_cast<unsigned int>(absl::ToInt64Milliseconds(silence));
  setsockopt(socket.get(), IPPROTO_TCP, TCP_USER_TIMEOUT, &silence_ms, sizeof(silence_ms));
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1);
  arguments.SetMaxReceiveMessageSize(kLongestReplyBytes);
  return grpc::CreateCustomInsecureChannelFromFd("convened", socket.Release(), arguments);
}

}  // namespace convene::rendezvous

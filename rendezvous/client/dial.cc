#include "rendezvous/client/dial.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "grpcpp/create_channel_posix.h"
#include "rendezvous/net/connect.h"
#include "rendezvous/net/grpc_setup.h"
#include "rendezvous/net/resolve.h"
#include "tools/base/backoff.h"
#include "tools/base/host_port.h"
#include "tools/base/random.h"
#include "tools/base/status_macros.h"

namespace convene::rendezvous {
namespace {

constexpr absl::Duration kLongestConnect = absl::Seconds(5);
constexpr int kLongestReplyBytes = 64 * 1024 * 1024;

absl::StatusOr<UniqueFd> TryOnce(const HostPort& target, MonotonicTime deadline) {
  const MonotonicTime begin = Clock::Real().Now();
  CONVENE_ASSIGN_OR_RETURN(const std::vector<ResolvedAddress> addresses,
                           ResolveHost(target.host, deadline - Clock::Real().Now(), target.port));
  absl::StatusOr<UniqueFd> last;
  bool all_refused = !addresses.empty();
  for (const ResolvedAddress& address : addresses) {
    last = ConnectTo(address, std::min(deadline, Clock::Real().Now() + kLongestConnect),
                     Segments::kShort);
    if (last.ok()) return last;
    // Refused: at this address nothing listens.
    all_refused =
        all_refused && absl::StrContains(last.status().message(), std::strerror(ECONNREFUSED));
  }
  if (!all_refused) return last;
  absl::Status refused = last.status();
  refused.SetPayload(kRefusedAt,
                     absl::Cord(absl::StrCat(absl::ToInt64Nanoseconds(begin.since_epoch()))));
  return refused;
}

}  // namespace

absl::StatusOr<UniqueFd> Dial(const std::string& endpoint, MonotonicTime deadline) {
  const absl::StatusOr<HostPort> target = ParseHostPort(endpoint, std::nullopt);
  CONVENE_RETURN_IF_ERROR(Annotate(target.status(), "rendezvous endpoint"));
  Backoff backoff(absl::Milliseconds(10), absl::Seconds(1));
  for (;;) {
    absl::StatusOr<UniqueFd> connected = TryOnce(*target, deadline);
    if (connected.ok()) return connected;
    const absl::Duration pause = backoff.Next(RandomFraction());
    if (Clock::Real().Now() + pause >= deadline) {
      absl::Status status = absl::UnavailableError(absl::StrCat(
          "no rendezvous at ", endpoint, " (", std::string(connected.status().message()),
          "): does `convened` or the node that hosts it run there?"));
      if (const auto refused_at = connected.status().GetPayload(kRefusedAt)) {
        status.SetPayload(kRefusedAt, *refused_at);
      }
      return status;
    }
    Clock::Real().SleepFor(pause);
  }
}

std::shared_ptr<grpc::Channel> ChannelOver(UniqueFd socket, absl::Duration silence) {
  const unsigned int silence_ms = static_cast<unsigned int>(absl::ToInt64Milliseconds(silence));
  setsockopt(socket.get(), IPPROTO_TCP, TCP_USER_TIMEOUT, &silence_ms, sizeof(silence_ms));
  RetransmitSteadily(socket.get());
  SetUpGrpc();
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1);
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);  // each ping costs the daemon an answer
  arguments.SetMaxReceiveMessageSize(kLongestReplyBytes);
  return grpc::CreateCustomInsecureChannelFromFd("convened", socket.Release(), arguments);
}

}  // namespace convene::rendezvous

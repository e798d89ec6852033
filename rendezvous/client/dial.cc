#include "rendezvous/client/dial.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
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
#include "tools/base/mutex.h"
#include "tools/base/random.h"
#include "tools/base/status_macros.h"

namespace convene::rendezvous {
namespace {

constexpr absl::Duration kLongestConnect = absl::Seconds(5);
constexpr int kLongestReplyBytes = 64 * 1024 * 1024;

// In the name service's order at first. Later each address comes first in its turn, however the
// name service mixes them.
void TakeTurns(int turn, std::vector<ResolvedAddress>* addresses) {
  if (turn == 0) return;
  std::sort(addresses->begin(), addresses->end(),
            [](const ResolvedAddress& a, const ResolvedAddress& b) {
              return std::memcmp(&a.storage, &b.storage, sizeof(a.storage)) < 0;
            });
  const auto first = static_cast<std::ptrdiff_t>(static_cast<size_t>(turn) % addresses->size());
  std::rotate(addresses->begin(), addresses->begin() + first, addresses->end());
}

absl::StatusOr<UniqueFd> ConnectOnce(const HostPort& target, int turn, MonotonicTime deadline) {
  const MonotonicTime begin = Clock::Real().Now();
  CONVENE_ASSIGN_OR_RETURN(std::vector<ResolvedAddress> addresses,
                           ResolveHost(target.host, deadline - Clock::Real().Now(), target.port));
  TakeTurns(turn, &addresses);
  absl::StatusOr<UniqueFd> last;
  bool all_refused = !addresses.empty();
  auto unasked = static_cast<int64_t>(addresses.size());
  for (const ResolvedAddress& address : addresses) {
    const MonotonicTime now = Clock::Real().Now();
    last = ConnectTo(address, now + std::min((deadline - now) / unasked--, kLongestConnect),
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

absl::Status NotTaken(const Endpoint& endpoint, const std::string& server_name,
                      const absl::Status& cause) {
  const Credentials& own = endpoint.credentials();
  const std::string place = absl::StrCat("the rendezvous at ", endpoint.address());
  const std::string why = absl::StrCat(" (", std::string(cause.message()), "): ");
  const std::string token =
      "--join-token-file has to be the same file on all nodes and at the "
      "daemon";
  if (!own.has_certificates()) {
    return absl::PermissionDeniedError(
        absl::StrCat(place, " does not take this join token", why, token));
  }
  return absl::PermissionDeniedError(
      absl::StrCat(place, " and this process do not take each other", why, "this side shows ",
                   own.tls_cert, " and takes a daemon's certificate of a CA in ", own.tls_ca,
                   server_name.empty() ? "" : absl::StrCat(" that names ", server_name),
                   "; the daemon takes those of its --tls-ca",
                   own.join_token.empty() ? "" : absl::StrCat("; ", token)));
}

// TLS over the connection, by the endpoint's pump.
absl::StatusOr<UniqueFd> Shake(const Endpoint& endpoint, const std::string& server_name,
                               UniqueFd socket, MonotonicTime deadline) {
  // Shared with the pump's thread, which may come after the deadline.
  struct Outcome {
    Mutex mutex;
    CondVar changed;
    std::optional<absl::StatusOr<TlsPump::Opened>> opened ABSL_GUARDED_BY(mutex);
  };
  CONVENE_ASSIGN_OR_RETURN(TlsPump * pump, endpoint.Pump());
  const auto outcome = std::make_shared<Outcome>();
  pump->Open(std::move(socket), server_name, [outcome](absl::StatusOr<TlsPump::Opened> opened) {
    MutexLock lock(&outcome->mutex);
    outcome->opened = std::move(opened);
    outcome->changed.SignalAll();
  });
  MutexLock lock(&outcome->mutex);
  while (!outcome->opened.has_value()) {
    const absl::Duration left = deadline - Clock::Real().Now();
    if (left <= absl::ZeroDuration()) return absl::DeadlineExceededError("no answer to TLS");
    outcome->changed.WaitFor(&outcome->mutex, left);
  }
  CONVENE_RETURN_IF_ERROR(outcome->opened->status());
  return std::move((*outcome->opened)->plain);
}

absl::StatusOr<Connection> TryOnce(const Endpoint& endpoint, const HostPort& target,
                                   MonotonicTime deadline) {
  CONVENE_ASSIGN_OR_RETURN(UniqueFd socket,
                           ConnectOnce(target, endpoint.dialling().turn, deadline));
  Connection connection;
  connection.transport.Reset(fcntl(socket.get(), F_DUPFD_CLOEXEC, 3));
  if (!endpoint.is_locked()) {
    connection.socket = std::move(socket);
    return connection;
  }
  const std::string server_name = endpoint.server_name().value_or(target.host);
  absl::StatusOr<UniqueFd> shaken = Shake(endpoint, server_name, std::move(socket), deadline);
  if (absl::IsPermissionDenied(shaken.status())) {
    return NotTaken(endpoint, server_name, shaken.status());
  }
  CONVENE_RETURN_IF_ERROR(shaken.status());
  connection.socket = *std::move(shaken);
  return connection;
}

}  // namespace

absl::StatusOr<Connection> Dial(const Endpoint& endpoint, MonotonicTime deadline) {
  const absl::StatusOr<HostPort> target = ParseHostPort(endpoint.address(), std::nullopt);
  CONVENE_RETURN_IF_ERROR(Annotate(target.status(), "rendezvous endpoint"));
  Backoff backoff(absl::Milliseconds(10), absl::Seconds(1));
  for (;;) {
    absl::StatusOr<Connection> connected = TryOnce(endpoint, *target, deadline);
    if (connected.ok() || absl::IsPermissionDenied(connected.status())) return connected;
    if (endpoint.dialling().is_once) return absl::UnavailableError(connected.status().message());
    const absl::Duration pause = backoff.Next(RandomFraction());
    if (Clock::Real().Now() + pause >= deadline) {
      absl::Status status = absl::UnavailableError(absl::StrCat(
          "no rendezvous at ", endpoint.address(), " (", std::string(connected.status().message()),
          "): does `convened` or the node that hosts it run there",
          endpoint.is_locked() ? ", with the same join token or certificates?" : "?"));
      if (const auto refused_at = connected.status().GetPayload(kRefusedAt)) {
        status.SetPayload(kRefusedAt, *refused_at);
      }
      return status;
    }
    Clock::Real().SleepFor(pause);
  }
}

std::shared_ptr<grpc::Channel> ChannelOver(Connection connection, absl::Duration silence) {
  const int tcp =
      connection.transport.valid() ? connection.transport.get() : connection.socket.get();
  const unsigned int silence_ms = static_cast<unsigned int>(absl::ToInt64Milliseconds(silence));
  setsockopt(tcp, IPPROTO_TCP, TCP_USER_TIMEOUT, &silence_ms, sizeof(silence_ms));
  RetransmitSteadily(tcp);
  SetUpGrpc();
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1);
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);  // each ping costs the daemon an answer
  arguments.SetMaxReceiveMessageSize(kLongestReplyBytes);
  return grpc::CreateCustomInsecureChannelFromFd("convened", connection.socket.Release(),
                                                 arguments);
}

}  // namespace convene::rendezvous

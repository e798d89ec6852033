#include "launcher/doctor/peer_probe.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "rendezvous/net/connect.h"
#include "rendezvous/net/resolve.h"
#include "tools/base/clock.h"
#include "tools/base/source_address.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/data/prepare/command_stream.h"

namespace convene::launcher {
namespace {

namespace pb = ::convene::doctor::v1;

constexpr int kQuestions = 8;
constexpr absl::Duration kSilenceMax = absl::Seconds(2);
constexpr size_t kNameBytesMax = 4096;

// A message either way: a time in nanoseconds since 1970, little-endian.
using Message = int64_t;

absl::Status ReadMessage(int fd, Message* message, MonotonicTime deadline) {
  auto* const bytes = reinterpret_cast<char*>(message);
  for (size_t have = 0; have < sizeof(*message);) {
    CONVENE_RETURN_IF_ERROR(rendezvous::AwaitReady(fd, POLLIN, deadline));
    const ssize_t count = recv(fd, bytes + have, sizeof(*message) - have, 0);
    if (count == 0) return absl::UnavailableError("the other end closed the connection");
    if (count < 0 && errno != EAGAIN && errno != EINTR) return absl::ErrnoToStatus(errno, "recv");
    if (count > 0) have += static_cast<size_t>(count);
  }
  return absl::OkStatus();
}

// A new connection's buffer takes so few bytes at once.
absl::Status WriteMessage(int fd, Message message) {
  const ssize_t count = send(fd, &message, sizeof(message), MSG_NOSIGNAL);
  if (count == static_cast<ssize_t>(sizeof(message))) return absl::OkStatus();
  return absl::ErrnoToStatus(count < 0 ? errno : EAGAIN, "send");
}

// The first name of an address by this machine's name services; "" where they have none, or do not
// answer. getent asks them, since the C library's own look-up knows no deadline.
std::string NameOf(const std::string& address, absl::Duration timeout) {
  const auto stream = worker::OpenCommand(
      {.path = "", .command = worker::CommandFor("getent hosts {}", address)}, timeout);
  std::string line(kNameBytesMax, '\0');
  const auto size = stream.ok() ? (*stream)->Read(line.data(), line.size()) : stream.status();
  if (!size.ok()) return "";
  line.resize(*size);
  const std::vector<std::string> words =
      absl::StrSplit(line, absl::ByAnyChar(" \n"), absl::SkipEmpty());
  return words.size() < 2 ? "" : words[1];
}

Message WallNanoseconds() { return absl::ToUnixNanos(WallNow()); }

absl::Status AnswerProbe(int fd) {
  for (int i = 0; i < kQuestions; ++i) {
    Message question = 0;
    CONVENE_RETURN_IF_ERROR(ReadMessage(fd, &question, Clock::Real().Now() + kSilenceMax));
    CONVENE_RETURN_IF_ERROR(WriteMessage(fd, WallNanoseconds()));
  }
  return absl::OkStatus();
}

// RFC 5905, section 8: the other clock's time stands for the middle of the round trip.
absl::Status AskClock(int fd, absl::Duration timeout, pb::PeerProbe* probe) {
  probe->set_round_trip_seconds(std::numeric_limits<double>::infinity());
  for (int i = 0; i < kQuestions; ++i) {
    const MonotonicTime begin = Clock::Real().Now();
    const Message own = WallNanoseconds();
    Message answer = 0;
    CONVENE_RETURN_IF_ERROR(WriteMessage(fd, own));
    CONVENE_RETURN_IF_ERROR(ReadMessage(fd, &answer, begin + timeout));
    const double seconds = absl::ToDoubleSeconds(Clock::Real().Now() - begin);
    if (seconds >= probe->round_trip_seconds()) continue;
    probe->set_round_trip_seconds(seconds);
    probe->set_clock_ahead_seconds(static_cast<double>(answer - own) * 1e-9 - seconds / 2);
  }
  return absl::OkStatus();
}

absl::Status Probe(const pb::NodeReport& peer, absl::Duration timeout, pb::PeerProbe* probe) {
  CONVENE_ASSIGN_OR_RETURN(const auto addresses,
                           rendezvous::ResolveHost(peer.address(), timeout, peer.port()));
  CONVENE_ASSIGN_OR_RETURN(const UniqueFd fd,
                           rendezvous::ConnectTo(addresses[0], Clock::Real().Now() + timeout));
  return AskClock(fd.get(), timeout, probe);
}

}  // namespace

absl::StatusOr<std::unique_ptr<ProbeServer>> ProbeServer::Start() {
  CONVENE_ASSIGN_OR_RETURN(rendezvous::Listener listener,
                           rendezvous::ListenOn(rendezvous::kAllAddresses, 0));
  UniqueFd stop(eventfd(0, EFD_CLOEXEC));
  if (!stop.valid()) return absl::ErrnoToStatus(errno, "eventfd");
  return std::unique_ptr<ProbeServer>(new ProbeServer(std::move(listener), std::move(stop)));
}

ProbeServer::ProbeServer(rendezvous::Listener listener, UniqueFd stop)
    : listener_(std::move(listener)),
      stop_(std::move(stop)),
      thread_("doctor", [this] { Serve(); }) {}

ProbeServer::~ProbeServer() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(stop_.get(), &one, sizeof(one));
  thread_.Join();
}

void ProbeServer::Serve() {
  for (;;) {
    pollfd ready[] = {{.fd = stop_.get(), .events = POLLIN},
                      {.fd = listener_.fd.get(), .events = POLLIN}};
    if (poll(ready, 2, -1) < 0 && errno != EINTR) return;
    if (ready[0].revents != 0) return;
    const UniqueFd connection(accept4(listener_.fd.get(), nullptr, nullptr, SOCK_CLOEXEC));
    // The prober sees the end of a connection that breaks.
    if (connection.valid() && rendezvous::PrepareConnection(connection.get()).ok()) {
      AnswerProbe(connection.get()).IgnoreError();
    }
  }
}

pb::PeerProbe ProbePeer(int node, const pb::NodeReport& peer, absl::Duration timeout) {
  pb::PeerProbe probe;
  probe.set_node(node);
  const absl::Status status = Probe(peer, timeout, &probe);
  if (!status.ok()) {
    probe.set_connect_error(std::string(status.message()));
    probe.set_round_trip_seconds(0);
  }
  return probe;
}

void LookUpNames(const pb::NodeReport& peer, absl::Duration timeout, pb::PeerProbe* probe) {
  const auto named = rendezvous::ResolveHost(peer.host(), timeout);
  if (!named.ok()) probe->set_name_error(std::string(named.status().message()));
  for (const rendezvous::ResolvedAddress& each :
       named.value_or(std::vector<rendezvous::ResolvedAddress>())) {
    probe->add_named_addresses(AddressText(each.get()));
  }
  probe->set_address_name(NameOf(peer.address(), timeout));
}

}  // namespace convene::launcher

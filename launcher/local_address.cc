#include "launcher/local_address.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "launcher/meeting_place.h"
#include "rendezvous/net/resolve.h"
#include "spdlog/spdlog.h"
#include "tools/base/backoff.h"
#include "tools/base/clock.h"
#include "tools/base/random.h"
#include "tools/base/source_address.h"
#include "tools/base/status_macros.h"

namespace convene::launcher {
namespace {

using rendezvous::ResolvedAddress;

constexpr absl::Duration kLongestLookup = absl::Seconds(10);
constexpr absl::Duration kTellInterval = absl::Seconds(30);

// On the default route, unless a test network has it; nothing is sent there.
constexpr char kFarAddress[] = "203.0.113.1";

// By which other machines reach this one, as far as its interfaces tell; a loopback address where
// it has no other.
std::string AddressForOthers(const std::vector<std::string>& own) {
  const auto far = rendezvous::ResolveHost(kFarAddress, absl::ZeroDuration());
  if (far.ok()) {
    const auto source = SourceTowards(far->front().get(), far->front().length);
    if (source.ok() && !IsThisMachineEverywhere(*source)) return *source;
  }
  const auto other = std::find_if_not(own.begin(), own.end(), IsThisMachineEverywhere);
  return other == own.end() ? "127.0.0.1" : *other;
}

bool IsOwn(const std::string& address, const std::vector<std::string>& own) {
  return IsThisMachineEverywhere(address) || std::count(own.begin(), own.end(), address) > 0;
}

absl::Status NoSuchPod(const absl::Status& last, absl::Duration waited) {
  return absl::UnavailableError(absl::StrCat(
      std::string(last.message()), ", for ", absl::FormatDuration(waited),
      ". A pod has a name once it is placed on a node, if its `subdomain` is a headless Service "
      "(clusterIP: None) that selects it, and while it is not Ready only with "
      "publishNotReadyAddresses: true. Look at `kubectl get pods -o wide` and `kubectl get "
      "endpointslices`"));
}

struct Resolved {
  std::string host;
  std::vector<ResolvedAddress> addresses;
};

absl::StatusOr<Resolved> ResolvePatiently(const std::vector<std::string>& hosts,
                                          absl::Duration timeout, bool is_pod) {
  Clock& clock = Clock::Real();
  const MonotonicTime begin = clock.Now();
  const MonotonicTime deadline = begin + timeout;
  Backoff backoff(absl::Milliseconds(100), absl::Seconds(2));
  MonotonicTime tell_at = begin;
  for (;;) {
    absl::Status unknown;
    for (const std::string& host : hosts) {
      // A name service that does not answer is asked again: it may be a pod that starts, too.
      const absl::Duration left = deadline - clock.Now();
      const bool is_patient = is_pod || hosts.size() > 1;
      auto addresses =
          rendezvous::ResolveHost(host, is_patient ? std::min(left, kLongestLookup) : left);
      if (addresses.ok()) return Resolved{host, *std::move(addresses)};
      unknown = addresses.status();
    }
    const MonotonicTime now = clock.Now();
    const absl::Duration pause = backoff.Next(RandomFraction());
    if (now + pause >= deadline) return is_pod ? NoSuchPod(unknown, timeout) : unknown;
    if (now >= tell_at) {
      spdlog::warn("{}{}; trying again for {}", std::string(unknown.message()),
                   is_pod ? ": waiting until its pod is there" : "",
                   absl::FormatDuration(absl::Ceil(deadline - now, absl::Seconds(1))));
      tell_at = is_pod ? now + kTellInterval : MonotonicTime::InfiniteFuture();
    }
    clock.SleepFor(pause);
  }
}

}  // namespace

bool HasOneOf(const std::vector<ResolvedAddress>& addresses) {
  const auto own = OwnAddresses(/*with_link_local=*/true);
  return own.ok() && std::any_of(addresses.begin(), addresses.end(), [&own](const auto& address) {
           return IsOwn(AddressText(address.get()), *own);
         });
}

absl::Status CheckLoopback() {
  CONVENE_ASSIGN_OR_RETURN(const auto loopback,
                           rendezvous::ResolveHost("127.0.0.1", absl::ZeroDuration()));
  const absl::Status reached =
      SourceTowards(loopback.front().get(), loopback.front().length).status();
  if (reached.ok()) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(
      "this machine (or container, or network namespace) cannot reach itself: ",
      std::string(reached.message()),
      ". Its loopback interface is down or has no 127.0.0.1; bring it up: `ip link set lo up`"));
}

absl::StatusOr<Location> LocateRendezvous(const std::vector<std::string>& hosts,
                                          absl::Duration timeout, bool is_pod) {
  if (hosts.front() == "localhost") return Location{"localhost", true, "127.0.0.1", "127.0.0.1"};
  CONVENE_ASSIGN_OR_RETURN(const auto resolved, ResolvePatiently(hosts, timeout, is_pod));
  const auto& [host, addresses] = resolved;
  const ResolvedAddress& first = addresses.front();
  const std::string first_text = AddressText(first.get());
  const bool is_loopback = IsThisMachineEverywhere(first_text);
  if (is_loopback && first_text == host) return Location{host, true, host, host};
  CONVENE_ASSIGN_OR_RETURN(const std::vector<std::string> own,
                           OwnAddresses(/*with_link_local=*/false));
  Location location = {.host = host};
  for (const ResolvedAddress& address : addresses) {
    location.is_here |= IsOwn(AddressText(address.get()), own);
  }
  if (is_loopback) {
    location.own_address = AddressForOthers(own);
    location.loopback = first_text;
    return location;
  }
  CONVENE_ASSIGN_OR_RETURN(location.own_address, SourceTowards(first.get(), first.length));
  return location;
}

}  // namespace convene::launcher

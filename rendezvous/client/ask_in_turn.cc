#include "rendezvous/client/ask_in_turn.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "rendezvous/client/places.h"
#include "rendezvous/net/service_records.h"
#include "tools/base/backoff.h"
#include "tools/base/clock.h"
#include "tools/base/random.h"
#include "tools/base/status_macros.h"

namespace convene::rendezvous {
namespace {

constexpr absl::Duration kShortestShare = absl::Milliseconds(250);
constexpr absl::Duration kLongestShare = absl::Seconds(2);

}  // namespace

absl::Status AskInTurn(
    const Endpoint& endpoint, absl::Duration timeout,
    const std::function<absl::Status(const Endpoint& each, absl::Duration share)>& ask) {
  if (IsService(endpoint.address())) {
    CONVENE_ASSIGN_OR_RETURN(std::string places, ResolveService(endpoint.address()));
    return AskInTurn(endpoint.At(std::move(places), endpoint.server_name()), timeout, ask);
  }
  const size_t count = endpoint.Each(0).size();
  if (count == 1) return ask(endpoint, timeout);
  const MonotonicTime deadline = Clock::Real().Now() + timeout;
  const absl::Duration share =
      std::clamp(timeout / static_cast<int64_t>(count), kShortestShare, kLongestShare);
  Backoff backoff(absl::Milliseconds(50), absl::Seconds(1));
  for (int round = 0;; ++round) {
    std::vector<std::string> addresses;
    std::vector<std::string> reasons;
    size_t refusals = 0;
    for (const Endpoint& each : endpoint.Each(round)) {
      const absl::Status asked = ask(each, share);
      const bool is_refusal = absl::IsPermissionDenied(asked);
      if (!absl::IsUnavailable(asked) && !is_refusal) return asked;
      if (is_refusal) ++refusals;
      addresses.push_back(each.address());
      reasons.emplace_back(asked.message());
    }
    const absl::Duration pause = backoff.Next(RandomFraction());
    if (refusals == count || Clock::Real().Now() + pause >= deadline) {
      const auto code =
          refusals > 0 ? absl::StatusCode::kPermissionDenied : absl::StatusCode::kUnavailable;
      return absl::Status(code, NoneAnswers(addresses, reasons));
    }
    Clock::Real().SleepFor(pause);
  }
}

}  // namespace convene::rendezvous

#include "launcher/launch/fleet.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tools/base/exit_code.h"

namespace convene::launcher {
namespace {

// After the first agent has failed: the others have heard of it long before, unless they wait for
// another node.
constexpr absl::Duration kFollowPatience = absl::Seconds(10);
// The time that a link gets to end after its agent, and every link after a request to end at once.
constexpr absl::Duration kClosePatience = absl::Seconds(5);

std::string EndText(const LinkEnd& end) {
  return absl::StrCat("ssh ended with code ", end.exit_code,
                      end.last_lines.empty() ? "" : "; the last line from there: ",
                      end.last_lines.empty() ? "" : end.last_lines.back());
}

std::string SilenceText(absl::Duration patience) {
  return absl::StrCat("nothing came from there for ", absl::FormatDuration(patience));
}

}  // namespace

Fleet::Fleet(FleetOptions options) : options_(std::move(options)), hosts_(options_.hosts.size()) {}

std::vector<FleetAction> Fleet::Take() { return std::exchange(actions_, {}); }

void Fleet::Say(std::string line, bool is_error) {
  actions_.emplace_back(SayLine{std::move(line), is_error});
}

std::vector<FleetAction> Fleet::Begin(MonotonicTime now) {
  for (Host& host : hosts_) host.dial_at = now;
  DialNext(now);
  return Take();
}

void Fleet::DialNext(MonotonicTime now) {
  if (is_stopping_) return;
  size_t free = FreeSlots();
  for (size_t i = 0; i < hosts_.size() && free > 0; ++i) {
    if (hosts_[i].state != State::kWaiting || hosts_[i].dial_at > now) continue;
    hosts_[i].state = State::kDialing;
    hosts_[i].heard_at = now;
    actions_.emplace_back(DialHost{i});
    --free;
  }
}

size_t Fleet::FreeSlots() const {
  const auto dialing = std::count_if(
      hosts_.begin(), hosts_.end(), [](const Host& host) { return host.state == State::kDialing; });
  return options_.most_dialing - static_cast<size_t>(dialing);
}

std::vector<FleetAction> Fleet::Started(size_t index, MonotonicTime now) {
  Host& host = hosts_[index];
  if (host.state != State::kDialing || host.is_closing) return Take();
  host.state = State::kRunning;
  host.backoff.reset();
  if (std::exchange(host.has_run, true)) Say(absl::StrCat(options_.hosts[index], " is back"));
  DialNext(now);
  return Take();
}

void Fleet::HeardFrom(size_t index, MonotonicTime now) { hosts_[index].heard_at = now; }

void Fleet::SetDeaf(bool is_deaf, MonotonicTime now) {
  if (std::exchange(is_deaf_, is_deaf) == is_deaf) return;
  for (Host& host : hosts_) host.heard_at = now;
}

absl::Duration Fleet::Patience(const Host& host) const {
  const absl::Duration link_timeout = options_.ssh.link_timeout;
  return host.state == State::kDialing ? std::max(link_timeout, kStartPatience)
                                       : link_timeout * 1.25;
}

MonotonicTime Fleet::SilentAt(const Host& host) const {
  const bool is_open = host.state == State::kDialing || host.state == State::kRunning;
  if (!is_open || is_deaf_ || host.is_closing || host.exit_code.has_value()) {
    return MonotonicTime::InfiniteFuture();
  }
  return host.heard_at + Patience(host);
}

std::vector<FleetAction> Fleet::AgentEnded(size_t index, int exit_code, MonotonicTime now) {
  hosts_[index].exit_code = exit_code;
  hosts_[index].close_at = now + kClosePatience;
  if (exit_code == 0) has_succeeded_ = true;
  if (exit_code != 0 && !is_stopping_) {
    if (!failure_code_.has_value()) failure_code_ = exit_code;
    if (HasTooFew()) stop_at_ = std::min(stop_at_, now + kFollowPatience);
  }
  EndRedials();
  return Take();
}

std::vector<FleetAction> Fleet::LinkEnded(size_t index, const LinkEnd& end, MonotonicTime now) {
  Host& host = hosts_[index];
  const absl::Duration patience = Patience(host);
  const State before = std::exchange(host.state, State::kEnded);
  const bool was_silent = std::exchange(host.is_silent, false);
  const bool was_closed = std::exchange(host.is_closing, false) && !was_silent;
  host.close_at = MonotonicTime::InfiniteFuture();
  if (host.exit_code.has_value() || was_closed) {
    // Expected.
  } else if (is_stopping_) {
    if (before == State::kRunning) {
      Say(absl::StrCat("the connection to ", options_.hosts[index],
                       " was lost before its agent had ended. If the host lives, the agent there "
                       "ends within ",
                       absl::FormatDuration(options_.ssh.link_timeout), " and the workers' grace"),
          true);
    }
  } else if (before == State::kRunning) {
    Lost(index, was_silent ? SilenceText(patience) : EndText(end), now);
  } else if (host.has_run) {
    DialAgain(index, now);
  } else {
    const std::string& name = options_.hosts[index];
    NotStarted(index, was_silent ? ExplainSilence(options_.ssh, name, patience, end.last_lines)
                                 : ExplainNoStart(options_.ssh, name, options_.program,
                                                  end.exit_code, end.last_lines));
  }
  EndRedials();
  DialNext(now);
  return Take();
}

void Fleet::NotStarted(size_t index, const SshFailure& failure) {
  hosts_[index].exit_code = failure.exit_code;
  if (!HasTooFew() && (index != 0 || !options_.first_serves)) {
    return Say(absl::StrCat(failure.text, ". The job starts without this host: --nnodes allows ",
                            options_.nodes_min),
               true);
  }
  Say(absl::StrCat(failure.text, "."), true);
  if (!failure_code_.has_value()) failure_code_ = failure.exit_code;
  Stop(Request::kTerminate);
}

void Fleet::Lost(size_t index, const std::string& why, MonotonicTime now) {
  Say(absl::StrCat("the connection to ", options_.hosts[index], " is lost (", why,
                   "). If the host lives, its agent ends within ",
                   absl::FormatDuration(options_.ssh.link_timeout), " and the workers' grace"),
      true);
  const bool may_start = std::any_of(hosts_.begin(), hosts_.end(),
                                     [this](const Host& host) { return MayStart(host); });
  if (!IsAnyConnected() && !may_start && !failure_code_.has_value() && !has_succeeded_) {
    Say("no agent is left that could tell how the job ends", true);
    failure_code_ = static_cast<int>(ExitCode::kUnavailable);
  }
  if (IsAnyConnected()) Say(absl::StrCat(options_.hosts[index], " is dialled again"));
  DialAgain(index, now);
}

void Fleet::DialAgain(size_t index, MonotonicTime now) {
  Host& host = hosts_[index];
  if (!host.backoff.has_value()) host.backoff.emplace(absl::Seconds(1), absl::Seconds(30));
  // Hosts that were lost together are dialled one after the other.
  const double golden = 0.618 * static_cast<double>(index);
  host.state = State::kWaiting;
  host.dial_at = now + host.backoff->Next(golden - std::floor(golden));
}

bool Fleet::IsAnyConnected() const {
  return std::any_of(hosts_.begin(), hosts_.end(), [](const Host& host) {
    return host.state == State::kRunning && !host.exit_code.has_value();
  });
}

bool Fleet::MayStart(const Host& host) const {
  return !is_stopping_ && !host.has_run &&
         (host.state == State::kWaiting || host.state == State::kDialing);
}

bool Fleet::HasTooFew() const {
  const auto alive = std::count_if(hosts_.begin(), hosts_.end(), [](const Host& host) {
    return host.state != State::kEnded && !host.exit_code.has_value();
  });
  return alive < options_.nodes_min;
}

void Fleet::EndRedials() {
  const bool may_start = std::any_of(hosts_.begin(), hosts_.end(),
                                     [this](const Host& host) { return MayStart(host); });
  // After a success nobody waits for a host that has not started: the job is over.
  if (IsAnyConnected() || (may_start && !has_succeeded_)) return;
  for (size_t i = 0; i < hosts_.size(); ++i) {
    if (hosts_[i].state == State::kWaiting) hosts_[i].state = State::kEnded;
    if (hosts_[i].state == State::kDialing) Close(i);
  }
}

void Fleet::Close(size_t index) {
  hosts_[index].is_silent = false;
  if (!std::exchange(hosts_[index].is_closing, true)) actions_.emplace_back(CloseLink{index});
}

void Fleet::Stop(Request request) {
  is_stopping_ = true;
  stop_at_ = MonotonicTime::InfiniteFuture();
  for (size_t i = 0; i < hosts_.size(); ++i) {
    Host& host = hosts_[i];
    if (host.state == State::kRunning) actions_.emplace_back(TellHost{i, request});
    if (host.state == State::kDialing) Close(i);
    if (host.state == State::kWaiting) host.state = State::kEnded;
  }
}

std::vector<FleetAction> Fleet::Heard(const ReceivedSignal& signal, MonotonicTime now) {
  const StopRequest::Decision decision = stop_request_.Hear(signal);
  if (decision.meaning == StopRequest::Meaning::kEcho) {
    if (decision.is_first_key) Say(decision.why);
    return Take();
  }
  if (decision.meaning == StopRequest::Meaning::kStop) {
    stop_signal_ = signal.number;
    Say(absl::StrCat(decision.why, ": the agents of all hosts are asked to stop"));
    Stop(RequestOf(signal.number));
    return Take();
  }
  Say(absl::StrCat(decision.why, ": everything on all hosts is killed"));
  Stop(Request::kAtOnce);
  close_at_ = now + kClosePatience;
  return Take();
}

std::vector<FleetAction> Fleet::OnTime(MonotonicTime now) {
  if (now >= stop_at_) {
    Say(absl::StrCat("fewer hosts are left than the job needs (", options_.nodes_min,
                     "), and no other host will come: the others are asked to stop"),
        true);
    Stop(Request::kTerminate);
  }
  for (size_t i = 0; i < hosts_.size(); ++i) {
    Host& host = hosts_[i];
    if (host.state == State::kRunning && now >= std::min(host.close_at, close_at_)) {
      host.close_at = MonotonicTime::InfiniteFuture();
      Close(i);
    } else if (now >= SilentAt(host)) {
      Close(i);
      host.is_silent = true;
    }
  }
  if (now >= close_at_) close_at_ = MonotonicTime::InfiniteFuture();
  DialNext(now);
  return Take();
}

MonotonicTime Fleet::next_deadline() const {
  MonotonicTime next = std::min(stop_at_, close_at_);
  const bool may_dial = !is_stopping_ && FreeSlots() > 0;
  for (const Host& host : hosts_) {
    next = std::min({next, host.close_at, SilentAt(host)});
    if (may_dial && host.state == State::kWaiting) next = std::min(next, host.dial_at);
  }
  return next;
}

std::optional<int> Fleet::result() const {
  const bool is_over = std::all_of(hosts_.begin(), hosts_.end(),
                                   [](const Host& host) { return host.state == State::kEnded; });
  if (!is_over) return std::nullopt;
  if (has_succeeded_) return static_cast<int>(ExitCode::kOk);
  if (stop_signal_.has_value()) return ExitCodeForSignal(*stop_signal_);
  return failure_code_.value_or(static_cast<int>(ExitCode::kUnavailable));
}

}  // namespace convene::launcher

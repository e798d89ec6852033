// Stepper's functions for the stream to the daemon and the lease.
#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/core/explain.h"
#include "agent/core/stepper.h"
#include "rendezvous/client/places.h"

namespace convene::agent {
namespace {

using rendezvous::StopKind;
using rendezvous::Welcome;

// The pauses between tries.
constexpr absl::Duration kFirstWait = absl::Milliseconds(50);
constexpr absl::Duration kLongestWait = absl::Seconds(2);
constexpr absl::Duration kBetweenAtOnce = absl::Seconds(1);
// Of several daemons another one leads by then: their lease is 20 s (rendezvous/README.md).
constexpr absl::Duration kTakeover = absl::Seconds(20);
// Once the agent has a lease, tries and the waits between them are each a quarter of it at most:
// well within the lease the agent is back, or knows that no daemon is there.
constexpr int kTriesPerLease = 4;
constexpr absl::Duration kShortestTry = absl::Milliseconds(250);
// Of several endpoints: a daemon that says nothing is left after a quarter of the lease, and a
// heartbeat each eighth shows it in time.
constexpr int kSilencesPerLease = 4;
constexpr int kHeartbeatsPerLease = 8;
// A daemon that leaves so many heartbeats unanswered counts as gone.
constexpr size_t kMostUnheard = 64;
// The longest time that workers get between being told of the fence and being killed.
constexpr absl::Duration kFenceLead = absl::Seconds(1);

}  // namespace

void Stepper::Dial(const std::string& why) {
  s_.dialing = true;
  s_.dial_at = MonotonicTime::InfiniteFuture();
  if (s_.handed_over.has_value() && now_ >= s_.heard_at + s_.lease) {
    s_.handed_over.reset();
    s_.holds_place = false;
  }
  const std::string state = s_.handed_over.has_value() ? s_.handed_over->state : "";
  rendezvous::Hello hello = s_.rules.hello;
  hello.last_epoch = s_.highest_epoch;
  // Its epoch goes on without it, and may still need its store, whatever the daemon remembers.
  hello.holds_place = s_.holds_place || s_.phase == Phase::kSucceeded;
  hello.running_epoch = s_.place;
  hello.has_workers = s_.has_workers;
  hello.stop_limit = StopLimit(s_.rules);
  absl::Duration one_try = kOneTry;
  if (s_.ever_linked) {
    one_try = std::min(one_try, std::max(s_.lease / kTriesPerLease, kShortestTry));
  }
  const absl::Duration left = std::max(s_.link_deadline - now_, absl::Milliseconds(10));
  const bool may_host = !s_.holds_place || !state.empty();
  one_try = std::min(left, one_try);
  if (HasStandbys()) {
    const absl::Duration lease = s_.ever_linked ? s_.lease : s_.rules.hello.lease;
    s_.silent_at = now_ + one_try + lease / kSilencesPerLease;
  }
  actions_.push_back(
      OpenStream{std::move(hello), s_.at, one_try, may_host, state, s_.heard_at + s_.lease, why});
}

void Stepper::OnWelcome(Epoch daemon_epoch, const Welcome& welcome, MonotonicTime hello_at) {
  s_.linked = true;
  s_.ever_linked = true;
  s_.link_deadline = MonotonicTime::InfiniteFuture();
  s_.told_of_refusal = false;
  s_.refused.clear();
  s_.backoff.reset();
  if (welcome.heartbeat_interval > absl::ZeroDuration()) {
    s_.heartbeat_interval = welcome.heartbeat_interval;
  }
  s_.term = welcome.term;
  if (HasStandbys()) {
    s_.heartbeat_interval = std::min(s_.heartbeat_interval, welcome.lease / kHeartbeatsPerLease);
    const bool is_alone = welcome.term == 0 && !welcome.survives_restart;
    if (is_alone && !std::exchange(s_.told_of_strangers, true)) {
      actions_.push_back(Say{absl::StrCat(
          "the rendezvous at ", s_.rules.endpoints[s_.at],
          " has no memory that another daemon could go on with: a node that reaches another "
          "endpoint begins a run of its own there. Give one endpoint, or start the daemons with "
          "`convene serve --journal`")});
    }
  } else if (welcome.term > 0 && !std::exchange(s_.told_of_strangers, true)) {
    actions_.push_back(Say{absl::StrCat(
        "the daemon at ", s_.rules.endpoint,
        " is one of several that take turns: name all of them in --rdzv-endpoint, or this node "
        "does not find the next one")});
  }
  s_.holds_place = welcome.survives_restart;
  s_.handed_over.reset();
  const MonotonicTime old_lease_end = s_.heard_at + s_.lease;
  s_.lease = welcome.lease;
  NoteHeardAt(hello_at);
  WatchSilence();
  // The Welcome may have taken long, and the lease has run since the Hello.
  s_.heartbeat_at = std::max(now_, s_.heard_at + s_.heartbeat_interval);
  if (welcome.resumed) return OnResumed();
  s_.place = Epoch();
  s_.place_failure.reset();
  const std::string why = absl::StrCat("reconnected: the daemon is in epoch ", daemon_epoch.value(),
                                       ", this node was in ", s_.epoch.value());
  // Then no epoch can have begun without this node, and none begins before its Ready.
  const bool is_awaited = daemon_epoch == Epoch() && welcome.awaits_old_workers;
  if (s_.has_workers && !is_awaited) DieBy(old_lease_end);
  switch (s_.phase) {
    case Phase::kConnecting:
    case Phase::kWaiting:
      return Rejoin("welcomed");
    case Phase::kSucceeded:
      return s_.has_workers ? Abort(why) : Rejoin(why);
    case Phase::kRunning:
      if (daemon_epoch != Epoch()) return Abort(why);
      return BeginStop(StopKind::kCheckpoint, SIGTERM, true, true, s_.rules.stop_graces.checkpoint,
                       why);
    case Phase::kStopping:  // Ready follows.
      if (daemon_epoch != Epoch()) EndCheckpoint(why);
      return;
    case Phase::kLeaving:
    case Phase::kFinished:
      return;
  }
}

void Stepper::OnResumed() {
  if (s_.told_wait) s_.tell_wait_at = MonotonicTime::InfiniteFuture();
  if (s_.place_failure.has_value()) {
    SendEvent(*s_.place_failure, "the daemon may not have heard it before");
  }
  switch (s_.phase) {
    case Phase::kSucceeded:
      s_.said_ready = true;
      return SendEvent(rendezvous::WorkersSucceeded{}, "the daemon may not have heard it before");
    case Phase::kWaiting:
      s_.said_ready = true;
      return SendEvent(rendezvous::Ready{s_.store_host, s_.store_port}, "still ready");
    case Phase::kConnecting:
      return Rejoin("welcomed again");
    case Phase::kRunning:
      s_.said_ready = true;  // The Ready of this epoch holds: heartbeats speak of it again.
      return;
    case Phase::kStopping:  // Ready follows.
    case Phase::kLeaving:
    case Phase::kFinished:
      return;
  }
}

void Stepper::On(const StreamEnded& ended) {
  // The first try comes at once, for only_refused; a stream that breaks again and again waits.
  const bool is_first = std::exchange(s_.linked, false);
  if (is_first) s_.loss = std::string(ended.status.message());
  s_.silent_at = MonotonicTime::InfiniteFuture();
  const bool is_round_over = TurnToNext(ended.status, is_first);
  const bool is_at_once = is_first && now_ - s_.dialled_at_once_at >= kBetweenAtOnce;
  if (is_at_once) s_.dialled_at_once_at = now_;
  s_.dialing = s_.said_ready = false;
  s_.unheard.clear();
  // A process that was paused since the daemon last heard it may see the break long after it.
  const bool is_prompt = s_.heard_at >= s_.woke_at;
  s_.only_refused = is_first ? is_prompt : s_.only_refused && ended.refused_at.has_value();
  // After a HandOver an agent without the state may be the next to host, between two tries. Where
  // several daemons take turns (then a Welcome has a term), another one may lead already.
  const bool is_remembered =
      s_.holds_place && !s_.handed_over.has_value() && !HasStandbys() && s_.term == 0;
  if (ended.refused_at.has_value() && s_.only_refused && is_remembered) {
    NoteHeardAt(*ended.refused_at);
  }
  s_.heartbeat_at = MonotonicTime::InfiniteFuture();
  if (s_.resting_since.has_value()) EndRest();
  if (s_.phase == Phase::kFinished) return;
  if (s_.phase == Phase::kLeaving) return FinishNow(*s_.verdict);
  if (s_.verdict.has_value()) return;  // Only the workers' end is awaited.
  // Where a daemon once answered, a break now means a proxy in front of a daemon that starts again.
  const bool is_no_daemon =
      absl::IsFailedPrecondition(ended.status) && !s_.ever_linked && !HasStandbys();
  const bool is_taken = absl::IsAlreadyExists(ended.status);
  if (absl::IsAborted(ended.status) || absl::IsInvalidArgument(ended.status) || is_no_daemon ||
      (is_taken && !s_.rules.awaits_node_rank)) {
    return End(ResultOfStream(ended.status, s_.rules.endpoint),
               std::string(ended.status.message()));
  }
  if (!s_.ever_linked && Refuses()) {
    if (AllRefuse()) return EndSearch(ended.status);
    // The endpoints that do not answer may be about to lead.
    s_.link_deadline = std::min(s_.link_deadline, now_ + kTakeover);
  }
  if (s_.link_deadline == MonotonicTime::InfiniteFuture()) {
    s_.link_deadline = now_ + RedialTimeout(s_.rules);
  }
  // A Ready that was sent died with the stream, unless the daemon has made it part of a decision.
  if (s_.phase == Phase::kWaiting && !s_.holds_place) {
    Enter(Phase::kConnecting, std::string(ended.status.message()));
  }
  if (!s_.backoff.has_value()) {
    s_.backoff.emplace(kFirstWait, s_.ever_linked
                                       ? std::min(kLongestWait, s_.lease / kTriesPerLease)
                                       : kLongestWait);
  }
  const bool waits = is_first ? !is_at_once : is_round_over;
  const absl::Duration wait = waits ? s_.backoff->Next(random_fraction_) : absl::ZeroDuration();
  if (now_ + wait >= s_.link_deadline) return EndSearch(ended.status);
  if (is_taken && !std::exchange(s_.told_of_rival, true)) {
    actions_.push_back(
        Say{absl::StrCat("waiting for another agent to end: ", ended.status.message())});
  }
  // Files are renewed, and a stranger may have the address of a daemon that died.
  if (absl::IsPermissionDenied(ended.status) && !std::exchange(s_.told_of_refusal, true)) {
    actions_.push_back(
        Say{absl::StrCat("this node is refused, and goes on asking: ", ended.status.message())});
  }
  if (is_first && !s_.has_workers) s_.tell_wait_at = now_ + kQuietWait;
  s_.dial_at = now_ + wait;
  s_.why = absl::StrCat("stream ended (", ended.status.message(), ")");
}

void Stepper::EndSearch(const absl::Status& why) {
  const std::string reasons = HasStandbys() ? rendezvous::NoneAnswers(s_.rules.endpoints, s_.misses)
                                            : std::string(why.message());
  if (Refuses()) {
    return End(ResultOfStream(absl::PermissionDeniedError(reasons), s_.rules.endpoint), reasons);
  }
  const absl::Duration waited = s_.ever_linked ? RedialTimeout(s_.rules) : s_.rules.connect_timeout;
  const auto loss = s_.ever_linked ? std::optional<std::string>(s_.loss) : std::nullopt;
  const absl::Status last(HasStandbys() ? absl::StatusCode::kUnavailable : why.code(), reasons);
  End(ResultOfSilence(last, s_.rules.endpoint, waited, loss), "the rendezvous is gone");
}

bool Stepper::TurnToNext(const absl::Status& why, bool is_first) {
  const size_t count = std::max<size_t>(1, s_.rules.endpoints.size());
  s_.refused.resize(count, false);
  s_.refused[HasStandbys() ? s_.at : 0] = absl::IsPermissionDenied(why);
  if (!HasStandbys()) return true;
  s_.misses.resize(count, "not tried yet");
  s_.misses[s_.at] = std::string(why.message());
  s_.at = (s_.at + 1) % count;
  s_.missed = is_first ? 0 : s_.missed + 1;
  return s_.missed % count == 0;
}

void Stepper::WatchSilence() {
  const absl::Duration patience = s_.lease / kSilencesPerLease;
  s_.silent_at = HasStandbys() && !s_.unheard.empty()
                     ? std::max(s_.unheard.front(), s_.woke_at) + patience
                     : MonotonicTime::InfiniteFuture();
}

void Stepper::LeaveStream(const std::string& why) {
  if (s_.linked) actions_.push_back(Say{absl::StrCat("the rendezvous is left: ", why)});
  actions_.push_back(CloseStream{why});
  On(StreamEnded{absl::UnavailableError(why)});
}

void Stepper::TellWait() {
  s_.tell_wait_at = MonotonicTime::InfiniteFuture();
  if (IsLost()) {
    if (s_.told_of_refusal) return;  // A daemon is there, and has said what is wrong.
    // A daemon without that memory would be a stranger to this run.
    const bool has_memory = HasStandbys() || s_.term > 0 || s_.holds_place;
    actions_.push_back(Say{absl::StrCat(
        "waiting for a rendezvous at ", s_.rules.endpoint, ", for ",
        absl::FormatDuration(RedialTimeout(s_.rules)), " in all. The last one is gone (", s_.loss,
        has_memory ? "). A daemon with the memory of that one, started there, goes on with this run"
                   : "). The same command started there, or `convene serve`, serves this run "
                     "again")});
  } else if (s_.phase == Phase::kWaiting) {
    s_.told_wait = true;
    actions_.push_back(Say{absl::StrCat("waiting for a place in job ", s_.rules.hello.job_id,
                                        ": `convene status --endpoint ",
                                        s_.endpoint.empty() ? s_.rules.endpoint : s_.endpoint,
                                        "` shows which nodes are there and what is missing")});
  } else if (!s_.ever_linked && !s_.told_of_rival && !s_.told_of_refusal) {
    actions_.push_back(Say{
        absl::StrCat("the rendezvous at ", s_.rules.endpoint, " does not answer yet; trying for ",
                     absl::FormatDuration(s_.rules.connect_timeout), " in all",
                     s_.why.empty() ? "" : absl::StrCat(". The last try: ", s_.why))});
  }
}

void Stepper::SendHeartbeat() {
  if (s_.unheard.size() >= kMostUnheard) return LeaveStream("it answers no heartbeats any more");
  s_.heartbeat_at = now_ + s_.heartbeat_interval;
  s_.unheard.push_back(now_);
  WatchSilence();
  // On a new stream, the old epoch's workers are being stopped already: its number would only make
  // the daemon ask for that.
  actions_.push_back(Send{s_.said_ready ? s_.epoch : Epoch(), rendezvous::Heartbeat{}, ""});
}

void Stepper::OnHeard() {
  if (s_.unheard.empty()) return;
  const MonotonicTime sent_at = s_.unheard.front();
  s_.unheard.pop_front();
  NoteHeardAt(sent_at);
  WatchSilence();
  if (!s_.resting_since.has_value()) return;
  if (sent_at < *s_.resting_since) {  // An answer from before the pause.
    s_.fence_at = *s_.resting_since + s_.lease;
    return;
  }
  s_.resting_since.reset();
  actions_.push_back(WakeWorkers{"the rendezvous still counts on this node"});
}

void Stepper::NoteHeardAt(MonotonicTime heard_at) {
  s_.heard_at = std::max(s_.heard_at, heard_at);
  const absl::Duration lead = std::min(kFenceLead, s_.lease / 8);
  s_.fence_at = s_.has_fence ? s_.heard_at + s_.lease - lead : MonotonicTime::InfiniteFuture();
}

void Stepper::Fence() {
  s_.fence_at = MonotonicTime::InfiniteFuture();
  const bool is_over = s_.phase == Phase::kSucceeded && s_.verdict.has_value();
  if (!s_.has_workers || is_over) return;
  if (s_.resting_since.has_value()) return EndRest();
  const bool did_not_run = now_ >= s_.heard_at + s_.lease || s_.heard_at < s_.woke_at;
  const bool is_void = s_.phase == Phase::kStopping && s_.stop_kind == StopKind::kAbort;
  if (did_not_run && s_.linked && !is_void) return AskAfterPause();
  DieBy(s_.heard_at + s_.lease);
  if (s_.phase == Phase::kStopping) return;
  const std::string why = absl::StrCat(
      "no sign for ", absl::FormatDuration(absl::Trunc(now_ - s_.heard_at, absl::Milliseconds(1))),
      " that the rendezvous heard this node: the others may go on without it");
  if (s_.phase == Phase::kRunning) return Abort(why);
  // Only the workers' leftovers are ended; their success still has to be told.
  s_.stop_deadline = s_.dead_by;
  actions_.push_back(StopWorkers{StopKind::kAbort, SIGTERM, false, true, why});
}

void Stepper::AskAfterPause() {
  s_.resting_since = now_;
  s_.fence_at = now_ + s_.lease;
  actions_.push_back(RestWorkers{
      absl::StrCat("this process did not run for a while, and the rendezvous heard nothing of this "
                   "node for ",
                   absl::FormatDuration(absl::Trunc(now_ - s_.heard_at, absl::Milliseconds(1))),
                   ": the workers rest until it answers")});
  const bool has_asked = !s_.unheard.empty() && s_.unheard.back() == now_;
  if (!has_asked) SendHeartbeat();
}

void Stepper::EndRest() {
  s_.resting_since.reset();
  DieBy(now_);
  const std::string why =
      "the rendezvous has gone on without this node, which did not run, or cannot be reached";
  if (s_.phase == Phase::kRunning) Abort(why);
  if (s_.phase == Phase::kStopping) return Kill(why);
  s_.stop_deadline = s_.dead_by;
}

void Stepper::DieBy(MonotonicTime limit) {
  s_.dead_by = std::min(s_.dead_by, std::max(limit, now_));
  // After KILL a patience of its own holds.
  if (s_.phase == Phase::kStopping && !s_.killed) {
    s_.stop_deadline = std::min(s_.stop_deadline, s_.dead_by);
  }
}

}  // namespace convene::agent

#include "agent/core/machine.h"

#include <algorithm>
#include <csignal>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/core/explain.h"
#include "tools/base/exit_code.h"

namespace convene::agent {
namespace {

using rendezvous::Assignment;
using rendezvous::Close;
using rendezvous::Stop;
using rendezvous::StopKind;
using rendezvous::Welcome;

// One try to open the stream: short, so that a signal or a freed port is not kept waiting.
constexpr absl::Duration kOneTry = absl::Seconds(2);
// Between tries.
constexpr absl::Duration kFirstWait = absl::Milliseconds(50);
constexpr absl::Duration kLongestWait = absl::Seconds(2);
constexpr absl::Duration kBetweenAtOnce = absl::Seconds(1);
// Once it has a lease, tries and the waits between them are each a quarter of it at most: it is
// back, or knows that nobody is there, well within it.
constexpr int kTriesPerLease = 4;
constexpr absl::Duration kShortestTry = absl::Milliseconds(250);
// A daemon that leaves so many heartbeats unanswered is no daemon any more.
constexpr size_t kMostUnheard = 64;
// The longest that workers get between being told of the fence and being killed.
constexpr absl::Duration kFenceLead = absl::Seconds(1);

// One Step: the state, the time and the actions so far.
class Stepper {
 public:
  Stepper(State& state, MonotonicTime now, double random_fraction)
      : s_(state), now_(now), random_fraction_(random_fraction) {}

  Actions Take() { return std::move(actions_); }

  void On(const Begin&) {
    s_.link_deadline = now_ + s_.rules.connect_timeout;
    Dial("start");
  }
  void On(const FromDaemon& from);
  void On(const StreamEnded& ended);
  void On(const StoreStarted& store);
  void On(const StoreFailed& failed) { End(ResultOfStoreFailure(failed.status), "no store"); }
  void On(const HealthChecked& checked);
  void On(const SessionOpened& session) { s_.in_session.insert(session.local_rank); }
  void On(const WorkerExited& exited);
  void On(const WorkerHung& hung);
  void On(const WorkersGone&);
  void On(const SpawnFailed& failed) {
    End(ResultOfSpawnFailure(failed.status), std::string(failed.status.message()));
  }
  void On(const SignalReceived& received);
  void On(const Timer&);

 private:
  void OnWelcome(Epoch daemon_epoch, const Welcome& welcome, MonotonicTime hello_at);
  void OnResumed();
  void OnHeard();
  void OnAssignment(Epoch epoch, const Assignment& assignment);
  void OnStop(const Stop& stop);
  // The group broke while this node was saving: what is being saved will never be complete.
  void EndCheckpoint(const std::string& why);
  void OnClose(const Close& close);

  // The daemon heard this node then, or later.
  void NoteHeardAt(MonotonicTime heard_at);
  // The daemon may give this node up any moment now.
  void Fence();
  // No worker there is lives longer, whatever grace it was given.
  void DieBy(MonotonicTime limit);
  void SendHeartbeat();

  // Ends for good: stops workers first when there are any, then takes leave of the daemon.
  // `result` also tells of the failure that this node saw before.
  void End(Result result, const std::string& why) {
    EndWith(WithFailure(std::move(result), s_.failure), why);
  }
  void EndWith(Result result, const std::string& why);
  void FinishNow(Result result);
  void SayReady();
  void SayLeave(bool has_workers);
  // A failure of one of this node's workers ends the epoch here.
  void ReportFailure(rendezvous::WorkerFailure failure);
  // Waits for the daemon's answer to Leave, when it can be told.
  void LeaveAndFinish();
  void BeginStop(StopKind kind, int signal, bool spare_sessions, bool session_line,
                 absl::Duration grace, const std::string& why);
  void Abort(const std::string& why);
  void Rejoin(const std::string& why);
  void Dial(const std::string& why);
  void SendEvent(rendezvous::AgentEvent event, const std::string& why) {
    if (s_.linked) actions_.push_back(Send{s_.epoch, std::move(event), why});
  }
  void Enter(Phase phase, const std::string& why) {
    s_.phase = phase;
    s_.why = why;
    SetNextCheck();
  }
  void SetNextCheck() {
    s_.check_health_at = s_.phase == Phase::kWaiting && s_.rules.has_health_check
                             ? now_ + s_.rules.health_check_interval
                             : MonotonicTime::InfiniteFuture();
  }
  void CheckHealth() {
    s_.check_health_at = MonotonicTime::InfiniteFuture();
    if (std::exchange(s_.is_checking_health, true)) return;  // Begun before the stream broke.
    actions_.push_back(RunHealthCheck{s_.highest_epoch});
  }
  void CancelCheck() {
    if (std::exchange(s_.is_checking_health, false)) actions_.push_back(CancelHealthCheck{});
  }
  // Whether this end of a worker is one of its own making.
  bool IsFailure(const ExitStatus& status, bool in_session) const;
  bool HasWorkers() const { return s_.phase == Phase::kRunning || s_.phase == Phase::kStopping; }

  State& s_;
  const MonotonicTime now_;
  const double random_fraction_;
  Actions actions_;
};

void Stepper::Dial(const std::string& why) {
  s_.dialing = true;
  s_.dial_at = MonotonicTime::InfiniteFuture();
  rendezvous::Hello hello = s_.rules.hello;
  hello.last_epoch = s_.highest_epoch;
  hello.holds_place = s_.holds_place;
  hello.running_epoch = s_.place;
  hello.has_workers = HasWorkers();
  hello.stop_limit = StopLimit(s_.rules);
  absl::Duration one_try = kOneTry;
  if (s_.ever_linked) {
    one_try = std::min(one_try, std::max(s_.lease / kTriesPerLease, kShortestTry));
  }
  const absl::Duration left = std::max(s_.link_deadline - now_, absl::Milliseconds(10));
  actions_.push_back(OpenStream{std::move(hello), std::min(left, one_try), !s_.holds_place, why});
}

void Stepper::On(const FromDaemon& from) {
  s_.highest_epoch = std::max(s_.highest_epoch, from.event.epoch);
  if (const auto* welcome = std::get_if<Welcome>(&from.event.body)) {
    s_.has_fence = !from.is_from_here;
    OnWelcome(from.event.epoch, *welcome, from.hello_at);
  } else if (const auto* assignment = std::get_if<Assignment>(&from.event.body)) {
    OnAssignment(from.event.epoch, *assignment);
  } else if (const auto* stop = std::get_if<Stop>(&from.event.body)) {
    OnStop(*stop);
  } else if (std::holds_alternative<rendezvous::Heard>(from.event.body)) {
    OnHeard();
  } else {
    OnClose(std::get<Close>(from.event.body));
  }
}

void Stepper::NoteHeardAt(MonotonicTime heard_at) {
  s_.heard_at = std::max(s_.heard_at, heard_at);
  const absl::Duration lead = std::min(kFenceLead, s_.lease / 8);
  s_.fence_at = s_.has_fence ? s_.heard_at + s_.lease - lead : MonotonicTime::InfiniteFuture();
}

void Stepper::Fence() {
  s_.fence_at = MonotonicTime::InfiniteFuture();
  if (!HasWorkers()) return;
  DieBy(s_.heard_at + s_.lease);
  if (s_.phase != Phase::kRunning) return;
  Abort(absl::StrCat("no sign for ",
                     absl::FormatDuration(absl::Trunc(now_ - s_.heard_at, absl::Milliseconds(1))),
                     " that the rendezvous heard this node: the others may go on without it"));
}

void Stepper::DieBy(MonotonicTime limit) {
  s_.dead_by = std::min(s_.dead_by, std::max(limit, now_));
  // What is left after KILL has its own patience.
  if (s_.phase == Phase::kStopping && !s_.killed) {
    s_.stop_deadline = std::min(s_.stop_deadline, s_.dead_by);
  }
}

void Stepper::OnHeard() {
  if (s_.unheard.empty()) return;
  const MonotonicTime sent_at = s_.unheard.front();
  s_.unheard.pop_front();
  NoteHeardAt(sent_at);
}

void Stepper::OnResumed() {
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

void Stepper::OnWelcome(Epoch daemon_epoch, const Welcome& welcome, MonotonicTime hello_at) {
  s_.linked = true;
  s_.ever_linked = true;
  s_.link_deadline = MonotonicTime::InfiniteFuture();
  s_.backoff.reset();
  if (welcome.heartbeat_interval > absl::ZeroDuration()) {
    s_.heartbeat_interval = welcome.heartbeat_interval;
  }
  s_.holds_place = welcome.survives_restart;
  const MonotonicTime old_lease_end = s_.heard_at + s_.lease;
  s_.lease = welcome.lease;
  NoteHeardAt(hello_at);
  // A Welcome may have taken long: the lease has run since the Hello.
  s_.heartbeat_at = std::max(now_, s_.heard_at + s_.heartbeat_interval);
  if (welcome.resumed) return OnResumed();
  s_.place = Epoch();
  s_.place_failure.reset();
  const std::string why = absl::StrCat("reconnected: the daemon is in epoch ", daemon_epoch.value(),
                                       ", this node was in ", s_.epoch.value());
  // No epoch can have begun without this node, nor begins before its Ready.
  const bool is_awaited = daemon_epoch == Epoch() && welcome.awaits_old_workers;
  switch (s_.phase) {
    case Phase::kConnecting:
    case Phase::kWaiting:
      return Rejoin("welcomed");
    case Phase::kSucceeded:
      return Rejoin(why);
    case Phase::kRunning:
      if (!is_awaited) DieBy(old_lease_end);
      if (daemon_epoch != Epoch()) return Abort(why);
      return BeginStop(StopKind::kCheckpoint, SIGTERM, true, true, s_.rules.stop_graces.checkpoint,
                       why);
    case Phase::kStopping:  // Ready follows.
      if (!is_awaited) DieBy(old_lease_end);
      if (daemon_epoch != Epoch()) EndCheckpoint(why);
      return;
    case Phase::kLeaving:
    case Phase::kFinished:
      return;
  }
}

void Stepper::OnAssignment(Epoch epoch, const Assignment& assignment) {
  if (s_.phase == Phase::kRunning && epoch > s_.epoch) {
    s_.epoch = s_.place = epoch;  // Ready is to speak of the daemon's epoch.
    return Abort(absl::StrCat("epoch ", epoch.value(), " began without a Stop of the one before"));
  }
  if (s_.phase != Phase::kWaiting)
    return;  // Repeated, or crossed a failure of ours: Ready follows.
  s_.epoch = s_.place = epoch;
  s_.place_failure.reset();
  NoteHeardAt(s_.heard_at);
  if (s_.fence_at <= now_) {
    return Rejoin(
        absl::StrCat("epoch ", epoch.value(),
                     " was told too late: the others may have gone on without this node"));
  }
  s_.assignment = assignment;
  s_.failure.reset();
  s_.in_session.clear();
  s_.alive.clear();
  for (int rank = 0; rank < s_.rules.hello.local_world_size; ++rank) s_.alive.insert(rank);
  CancelCheck();
  Enter(Phase::kRunning, assignment.why);
  actions_.push_back(StartWorkers{epoch, assignment, assignment.why});
}

void Stepper::OnStop(const Stop& stop) {
  if (s_.phase == Phase::kSucceeded) return Rejoin(stop.why);
  if (s_.phase == Phase::kRunning) {
    if (stop.kind == StopKind::kAbort) return Abort(stop.why);
    return BeginStop(StopKind::kCheckpoint, SIGTERM, true, true, s_.rules.stop_graces.checkpoint,
                     stop.why);
  }
  if (s_.phase == Phase::kStopping && stop.kind == StopKind::kAbort) EndCheckpoint(stop.why);
}

void Stepper::EndCheckpoint(const std::string& why) {
  if (s_.stop_kind == StopKind::kCheckpoint && !s_.stop_request.made()) Abort(why);
}

void Stepper::OnClose(const Close& close) {
  if (s_.phase == Phase::kLeaving) return FinishNow(*s_.verdict);
  s_.linked = false;  // The daemon has forgotten this node: no Leave, no reconnect.
  s_.heartbeat_at = MonotonicTime::InfiniteFuture();
  Result result = ResultOfClose(close, s_.rules.hello.job_id, s_.rules.propagate_exit_code);
  if (!close.first_failure.has_value()) result = WithFailure(std::move(result), s_.failure);
  EndWith(std::move(result), close.why);
}

void Stepper::On(const StreamEnded& ended) {
  // At once, for only_refused; a stream that breaks again and again waits.
  const bool is_first = std::exchange(s_.linked, false);
  const bool is_at_once = is_first && now_ - s_.dialled_at_once_at >= kBetweenAtOnce;
  if (is_at_once) s_.dialled_at_once_at = now_;
  s_.dialing = s_.said_ready = false;
  s_.unheard.clear();
  s_.only_refused = is_first || (s_.only_refused && ended.refused_at.has_value());
  if (ended.refused_at.has_value() && s_.only_refused) NoteHeardAt(*ended.refused_at);
  s_.heartbeat_at = MonotonicTime::InfiniteFuture();
  if (s_.phase == Phase::kFinished) return;
  if (s_.phase == Phase::kLeaving) return FinishNow(*s_.verdict);
  if (s_.verdict.has_value()) return;  // Only the workers' end is awaited.
  // What once was a daemon and breaks off now is behind a proxy, and starts again.
  const bool is_no_daemon = absl::IsFailedPrecondition(ended.status) && !s_.ever_linked;
  if (absl::IsAborted(ended.status) || absl::IsInvalidArgument(ended.status) || is_no_daemon ||
      absl::IsPermissionDenied(ended.status)) {
    return End(ResultOfStream(ended.status, s_.rules.endpoint),
               std::string(ended.status.message()));
  }
  if (s_.link_deadline == MonotonicTime::InfiniteFuture()) {
    s_.link_deadline = now_ + RedialTimeout(s_.rules);
  }
  // Ready, if it was sent, died with the stream, unless the daemon has made it part of a decision.
  if (s_.phase == Phase::kWaiting && !s_.holds_place) {
    Enter(Phase::kConnecting, std::string(ended.status.message()));
  }
  if (!s_.backoff.has_value()) {
    s_.backoff.emplace(kFirstWait, s_.ever_linked
                                       ? std::min(kLongestWait, s_.lease / kTriesPerLease)
                                       : kLongestWait);
  }
  const absl::Duration wait =
      is_at_once ? absl::ZeroDuration() : s_.backoff->Next(random_fraction_);
  if (now_ + wait >= s_.link_deadline) {
    const absl::Duration waited =
        s_.ever_linked ? RedialTimeout(s_.rules) : s_.rules.connect_timeout;
    return End(ResultOfSilence(ended.status, s_.rules.endpoint, waited, s_.ever_linked),
               "the rendezvous is gone");
  }
  s_.dial_at = now_ + wait;
  s_.why = absl::StrCat("stream ended (", ended.status.message(), ")");
}

void Stepper::On(const StoreStarted& store) {
  if (s_.phase != Phase::kConnecting || !s_.linked) return;
  s_.store_port = store.port;
  s_.store_host = store.host.empty() ? s_.rules.store_host : store.host;
  s_.rules.has_health_check ? CheckHealth() : SayReady();
}

void Stepper::On(const HealthChecked& checked) {
  if (!std::exchange(s_.is_checking_health, false)) return;  // Cancelled.
  if (!checked.status.ok()) {
    return End(ResultOfHealthCheck(s_.rules.hello.host, checked.status), "unfit");
  }
  if (s_.phase == Phase::kWaiting) return SetNextCheck();
  // Else the stream broke meanwhile: the next Welcome has the check made again.
  if (s_.phase == Phase::kConnecting && s_.linked && s_.store_port != 0) SayReady();
}

void Stepper::SayReady() {
  Enter(Phase::kWaiting, "ready for the next epoch");
  s_.said_ready = true;
  SendEvent(rendezvous::Ready{s_.store_host, s_.store_port}, "no worker runs here");
}

bool Stepper::IsFailure(const ExitStatus& status, bool in_session) const {
  if (s_.phase == Phase::kRunning) {
    return ClassifyExit(status, in_session).kind != ExitKind::kSucceeded;
  }
  const bool saves = s_.phase == Phase::kStopping && s_.stop_kind == StopKind::kCheckpoint &&
                     !s_.stop_request.made() && !s_.verdict.has_value();
  return saves && !IsAnswerTo(SIGTERM, status, in_session) &&
         !(s_.killed && IsAnswerTo(SIGKILL, status, in_session));
}

void Stepper::On(const WorkerExited& exited) {
  s_.alive.erase(exited.local_rank);
  // This node ends for good and its part of the group is broken now: the others are not to be
  // blamed for breaking next.
  if (s_.phase == Phase::kStopping && s_.verdict.has_value() &&
      !std::exchange(s_.said_leaving, true)) {
    SayLeave(/*has_workers=*/true);
  }
  const bool in_session = s_.in_session.count(exited.local_rank) > 0;
  if (!IsFailure(exited.status, in_session)) return;
  const ExitVerdict verdict = ClassifyExit(exited.status, in_session);
  rendezvous::WorkerFailure failure;
  failure.global_rank = s_.assignment.first_global_rank + exited.local_rank;
  failure.local_rank = exited.local_rank;
  failure.host = s_.rules.hello.host;
  failure.pid = exited.pid;
  failure.exit_code = exited.status.exit_code;
  failure.signal = exited.status.signal;
  failure.why = s_.phase == Phase::kRunning
                    ? verdict.why
                    : absl::StrCat(verdict.why, " while it was to save and stop");
  failure.last_log_lines = exited.last_log_lines;
  failure.error_lines = exited.error_lines;
  failure.error_file = exited.error_file;
  failure.costs_budget = verdict.costs_budget;
  failure.is_final = verdict.is_final;
  ReportFailure(std::move(failure));
}

void Stepper::On(const WorkerHung& hung) {
  // It may have ended, or been stopped, while it was looked at.
  if (s_.phase != Phase::kRunning || hung.epoch != s_.epoch ||
      s_.alive.count(hung.local_rank) == 0) {
    return;
  }
  rendezvous::WorkerFailure failure;
  failure.global_rank = s_.assignment.first_global_rank + hung.local_rank;
  failure.local_rank = hung.local_rank;
  failure.host = s_.rules.hello.host;
  failure.pid = hung.pid;
  failure.exit_code = static_cast<int>(ExitCode::kTrainingFailed);  // It has none of its own.
  failure.why = hung.why;
  failure.last_log_lines = hung.last_log_lines;
  ReportFailure(std::move(failure));
}

void Stepper::ReportFailure(rendezvous::WorkerFailure failure) {
  const std::string why = absl::StrCat("rank ", failure.global_rank, ": ", failure.why);
  if (failure.costs_budget && !s_.failure.has_value()) s_.failure = failure;
  s_.place_failure = failure;
  SendEvent(std::move(failure),
            why);  // Before anything else: the other nodes are waiting in a collective.
  Abort(why);
}

void Stepper::On(const WorkersGone&) {
  s_.alive.clear();
  if (s_.phase == Phase::kRunning) {
    Enter(Phase::kSucceeded, "all workers ended with 0");
    return SendEvent(rendezvous::WorkersSucceeded{}, s_.why);
  }
  if (s_.phase != Phase::kStopping) return;
  s_.stop_deadline = s_.dead_by = MonotonicTime::InfiniteFuture();
  if (s_.verdict.has_value()) return LeaveAndFinish();
  Rejoin(s_.why);
}

void Stepper::On(const SignalReceived& received) {
  if (s_.phase == Phase::kFinished) return;
  const StopRequest::Decision decision = s_.stop_request.Hear(received.signal, now_);
  if (decision.meaning == StopRequest::Meaning::kEcho) return;
  if (decision.meaning == StopRequest::Meaning::kAtOnce) {
    if (s_.phase == Phase::kLeaving) return FinishNow(*s_.verdict);
    if (s_.phase != Phase::kStopping || s_.killed) return;
    s_.killed = true;
    s_.stop_deadline = now_ + s_.rules.kill_patience;
    actions_.push_back(KillWorkers{decision.why});
    return;
  }
  if (!s_.verdict.has_value()) {
    s_.verdict = WithFailure(ResultOfSignal(received.signal.number), s_.failure);
  }
  if (!HasWorkers()) return LeaveAndFinish();
  BeginStop(StopKind::kCheckpoint, received.signal.number, false, false,
            s_.rules.stop_graces.signal, decision.why);
}

void Stepper::On(const Timer&) {
  if (s_.linked && now_ >= s_.heartbeat_at) SendHeartbeat();
  if (now_ >= s_.dial_at) Dial(s_.why);
  if (now_ >= s_.check_health_at) CheckHealth();
  // Connected, but no Welcome: as good as not there.
  if (!s_.linked && s_.dialing && now_ >= s_.link_deadline + kOneTry) {
    actions_.push_back(CloseStream{"no Welcome"});
    On(StreamEnded{absl::UnavailableError("it accepts the connection but says no Welcome")});
  }
  if (now_ >= s_.fence_at) Fence();
  if (now_ < s_.stop_deadline) return;
  if (s_.phase == Phase::kLeaving) return FinishNow(*s_.verdict);
  if (s_.phase != Phase::kStopping) return;
  if (s_.killed) {
    return FinishNow(ResultOfUndeadWorkers(s_.rules.hello.host, s_.rules.kill_patience));
  }
  s_.killed = true;
  s_.stop_deadline = now_ + s_.rules.kill_patience;
  actions_.push_back(KillWorkers{absl::StrCat("the grace is over (", s_.why, ")")});
}

void Stepper::SendHeartbeat() {
  if (s_.unheard.size() >= kMostUnheard) {
    actions_.push_back(CloseStream{"heartbeats are not answered"});
    return On(StreamEnded{absl::UnavailableError("it answers no heartbeats any more")});
  }
  s_.heartbeat_at = now_ + s_.heartbeat_interval;
  s_.unheard.push_back(now_);
  // On a new stream, workers of the old epoch are being stopped already: its number would only
  // make the daemon ask for it.
  actions_.push_back(Send{s_.said_ready ? s_.epoch : Epoch(), rendezvous::Heartbeat{}, ""});
}

void Stepper::BeginStop(StopKind kind, int signal, bool spare_sessions, bool session_line,
                        absl::Duration grace, const std::string& why) {
  Enter(Phase::kStopping, why);
  s_.stop_kind = kind;
  s_.killed = false;
  s_.stop_deadline = std::min(now_ + grace, s_.dead_by);
  actions_.push_back(StopWorkers{kind, signal, spare_sessions, session_line, why});
}

void Stepper::Abort(const std::string& why) {
  const bool all_in_session =
      std::includes(s_.in_session.begin(), s_.in_session.end(), s_.alive.begin(), s_.alive.end());
  BeginStop(StopKind::kAbort, SIGTERM, false, true,
            all_in_session && !s_.alive.empty()
                ? std::min(s_.rules.session_abort_grace, s_.rules.stop_graces.abort)
                : s_.rules.stop_graces.abort,
            why);
}

void Stepper::Rejoin(const std::string& why) {
  Enter(Phase::kConnecting, why);
  s_.store_port = 0;
  if (s_.linked) actions_.push_back(RestartStore{why});  // Else the next Welcome does.
}

void Stepper::EndWith(Result result, const std::string& why) {
  if (s_.phase == Phase::kFinished || s_.phase == Phase::kLeaving) return;
  if (!s_.verdict.has_value()) s_.verdict = std::move(result);
  if (s_.phase == Phase::kRunning) return Abort(why);
  if (s_.phase == Phase::kStopping) return;
  LeaveAndFinish();
}

void Stepper::SayLeave(bool has_workers) {
  const bool is_unfit = s_.verdict->exit_code == static_cast<int>(ExitCode::kUnfitNode);
  SendEvent(rendezvous::Leave{s_.verdict->explanation, is_unfit, has_workers}, "this node ends");
}

void Stepper::LeaveAndFinish() {
  CancelCheck();
  if (!s_.linked) return FinishNow(*s_.verdict);
  SayLeave(/*has_workers=*/false);
  Enter(Phase::kLeaving, "Leave sent");
  s_.stop_deadline = now_ + s_.rules.leave_patience;
}

void Stepper::FinishNow(Result result) {
  Enter(Phase::kFinished, "");
  s_.stop_deadline = s_.dial_at = s_.heartbeat_at = s_.link_deadline = s_.fence_at =
      MonotonicTime::InfiniteFuture();
  actions_.push_back(Finish{std::move(result)});
}

}  // namespace

Actions Step(State& state, const Event& event, MonotonicTime now, double random_fraction) {
  Stepper stepper(state, now, random_fraction);
  std::visit([&](const auto& e) { stepper.On(e); }, event);
  return stepper.Take();
}

MonotonicTime NextTimer(const State& state) {
  MonotonicTime next = std::min(std::min(state.heartbeat_at, state.dial_at), state.stop_deadline);
  next = std::min(next, std::min(state.fence_at, state.check_health_at));
  if (!state.linked && state.dialing) next = std::min(next, state.link_deadline + kOneTry);
  return next;
}

const char* PhaseName(Phase phase) {
  switch (phase) {
    case Phase::kConnecting:
      return "connecting";
    case Phase::kWaiting:
      return "waiting";
    case Phase::kRunning:
      return "running";
    case Phase::kStopping:
      return "stopping";
    case Phase::kSucceeded:
      return "succeeded";
    case Phase::kLeaving:
      return "leaving";
    case Phase::kFinished:
      return "finished";
  }
  return "?";
}

}  // namespace convene::agent

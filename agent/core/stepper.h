// The inside of the machine (machine.h): one Step at work. The methods stand in machine.cc (workers
// and their ends), machine_link.cc (the stream, the lease) and machine_stop.cc (stops, the node's
// end).
#pragma once

#include <algorithm>
#include <string>
#include <utility>

#include "absl/algorithm/container.h"
#include "agent/core/explain.h"
#include "agent/core/machine.h"

namespace convene::agent {

// The timeout of one try to open the stream; it is short, so that a signal or a freed port need not
// wait long.
inline constexpr absl::Duration kOneTry = absl::Seconds(2);

// Of so many epochs the last words tell what stopped them.
inline constexpr size_t kMostStopsTold = 3;

// The longest wait of which the person hears nothing.
inline constexpr absl::Duration kQuietWait = absl::Seconds(10);

// One Step: the state, the time and the actions so far.
class Stepper {
 public:
  Stepper(State& state, MonotonicTime now, double random_fraction)
      : s_(state), now_(now), random_fraction_(random_fraction) {}

  Actions Take() { return std::move(actions_); }

  void On(const Begin&) {
    s_.link_deadline = now_ + s_.rules.connect_timeout;
    s_.tell_wait_at = now_ + kQuietWait;
    Dial("start");
  }
  void On(const FromDaemon& from);
  void On(const StreamEnded& ended);
  void On(const StoreStarted& store);
  void On(const StoreFailed& failed) { End(ResultOfStoreFailure(failed.status), "no store"); }
  void On(const HealthChecked& checked);
  void On(const SessionOpened& session) { s_.in_session.insert(session.local_rank); }
  void On(const SessionLeft& session) { s_.in_session.erase(session.local_rank); }
  void On(const WorkerExited& exited);
  void On(const WorkerHung& hung);
  void On(const WorkersGone&);
  void On(const SpawnFailed& failed) {
    End(ResultOfSpawnFailure(failed.status), std::string(failed.status.message()));
  }
  void On(const SignalReceived& received);
  void On(const Paused& paused) {
    s_.woke_at = now_;
    s_.stop_deadline = s_.stop_deadline + paused.duration;
    // After KILL a patience of its own holds.
    if (!s_.killed) s_.stop_deadline = std::min(s_.stop_deadline, s_.dead_by);
    s_.link_deadline = s_.link_deadline + paused.duration;
    s_.silent_at = s_.silent_at + paused.duration;
  }
  void On(const Timer&);

 private:
  void OnWelcome(Epoch daemon_epoch, const rendezvous::Welcome& welcome, MonotonicTime hello_at);
  void OnResumed();
  bool HasStandbys() const { return s_.rules.endpoints.size() > 1; }
  // Notes that an endpoint did not answer, or lost the stream, and turns to the next one. True: the
  // round is over, each endpoint has been tried.
  bool TurnToNext(const absl::Status& why, bool is_first);
  // Whether an endpoint refused this node when it was last dialled; whether all did.
  bool Refuses() const { return absl::c_linear_search(s_.refused, true); }
  bool AllRefuse() const { return Refuses() && !absl::c_linear_search(s_.refused, false); }
  // Ends the node: no stream could be opened. `why`: the last try's end.
  void EndSearch(const absl::Status& why);
  // Of several endpoints: gives the daemon a quarter of the lease for its next word.
  void WatchSilence();
  // Closes the stream, as if it had ended with `why`.
  void LeaveStream(const std::string& why);
  void OnHeard();
  void OnAssignment(Epoch epoch, const rendezvous::Assignment& assignment);
  void OnStop(const rendezvous::Stop& stop);
  // The group broke while this node was saving: the checkpoint will never be complete.
  void EndCheckpoint(const std::string& why);
  void OnClose(const rendezvous::Close& close);

  // Notes that the daemon heard this node at `heard_at`, or later.
  void NoteHeardAt(MonotonicTime heard_at);
  // Stops the workers: the daemon may give this node up any moment now.
  void Fence();
  // The lease ended while this process did not run: asks the daemon, and lets the workers rest.
  void AskAfterPause();
  // Ends workers that rest: the daemon has gone on without them, or cannot be asked.
  void EndRest();
  // No worker lives longer than `limit`, whatever grace it was given.
  void DieBy(MonotonicTime limit);
  void SendHeartbeat();

  // Ends for good: stops workers first when there are any, then takes leave of the daemon.
  // `result` also tells what stopped workers before.
  void End(Result result, const std::string& why) { EndWith(WithPast(std::move(result)), why); }
  Result WithPast(Result result) const;
  void EndWith(Result result, const std::string& why);
  void FinishNow(Result result);
  void SayReady();
  void SayLeave(bool has_workers);
  // A failure of one of this node's workers; the caller says how it failed.
  rendezvous::WorkerFailure FailureOf(int local_rank, int64_t pid) const;
  // Tells the daemon, and stops this node's workers: the failure ends the epoch here.
  void ReportFailure(rendezvous::WorkerFailure failure);
  // Every worker of this node ended with 0; their leftovers may go on.
  void Succeed();
  // Waits for the daemon's answer to Leave, when it can be told.
  void LeaveAndFinish();
  void BeginStop(rendezvous::StopKind kind, int signal, bool spare_sessions, bool session_line,
                 absl::Duration grace, const std::string& why);
  void Abort(const std::string& why);
  void Kill(const std::string& why);
  void Rejoin(const std::string& why);
  void Dial(const std::string& why);
  void SendEvent(rendezvous::AgentEvent event, const std::string& why) {
    if (s_.linked) actions_.push_back(Send{s_.epoch, std::move(event), why});
  }
  void Enter(Phase phase, const std::string& why) {
    s_.phase = phase;
    s_.why = why;
    SetNextCheck();
    const bool waits = phase == Phase::kWaiting || (phase == Phase::kConnecting && IsLost());
    s_.tell_wait_at = waits ? now_ + kQuietWait : MonotonicTime::InfiniteFuture();
    s_.told_wait = false;
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
  // Says that this node still waits, and for whom.
  void TellWait();
  // The rendezvous that this node had is gone.
  bool IsLost() const { return s_.ever_linked && !s_.linked; }
  void CancelCheck() {
    if (std::exchange(s_.is_checking_health, false)) actions_.push_back(CancelHealthCheck{});
  }
  // Whether the worker itself caused its end, and not a stop.
  bool IsFailure(const ExitStatus& status, bool in_session) const;

  State& s_;
  const MonotonicTime now_;
  const double random_fraction_;
  Actions actions_;
};

}  // namespace convene::agent

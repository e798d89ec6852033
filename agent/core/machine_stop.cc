// Stepper's functions that stop workers and end this node.
#include <algorithm>
#include <csignal>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/core/explain.h"
#include "agent/core/stepper.h"
#include "tools/base/exit_code.h"

namespace convene::agent {

using rendezvous::Close;
using rendezvous::Stop;
using rendezvous::StopKind;

void Stepper::OnStop(const Stop& stop) {
  if (s_.phase == Phase::kSucceeded) {
    return s_.has_workers ? Abort(stop.why) : Rejoin(stop.why);
  }
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
  // The job had ended before, so its result counts, not this node's later end.
  if (s_.has_succeeded && close.outcome == rendezvous::Outcome::kSucceeded) s_.verdict = Result{};
  if (s_.phase == Phase::kLeaving) return FinishNow(*s_.verdict);
  s_.linked = false;  // The daemon has forgotten this node: no Leave, no reconnect.
  s_.heartbeat_at = MonotonicTime::InfiniteFuture();
  // The fence stays: the next run under this id may begin at once.
  Result result =
      ResultOfClose(close, s_.rules.hello.job_id, s_.rules.propagate_exit_code, s_.highest_epoch);
  if (!close.first_failure.has_value()) result = WithPast(std::move(result));
  EndWith(std::move(result), close.why);
  // The daemon says no Stop(abort) before the Close of a job that has failed.
  if (s_.phase == Phase::kStopping && close.outcome == rendezvous::Outcome::kFailed) {
    EndCheckpoint(close.why);
  }
}

void Stepper::On(const SignalReceived& received) {
  if (s_.phase == Phase::kFinished) return;
  const StopRequest::Decision decision = s_.stop_request.Hear(received.signal);
  if (decision.meaning == StopRequest::Meaning::kEcho) {
    if (decision.is_first_key) actions_.push_back(Say{decision.why});
    return;
  }
  if (decision.meaning == StopRequest::Meaning::kAtOnce) {
    if (s_.phase == Phase::kLeaving) return FinishNow(*s_.verdict);
    if (s_.phase != Phase::kStopping || s_.killed) return;
    return Kill(decision.why);
  }
  if (!s_.verdict.has_value()) {
    s_.ending_signal = received.signal.number;
    s_.verdict =
        WithFailure(s_.has_workers ? ResultOfSignal(s_.ending_signal)
                                   : ResultOfSignal(s_.ending_signal, "no worker was running here"),
                    s_.failure);
  }
  if (!s_.has_workers) return LeaveAndFinish();
  BeginStop(StopKind::kCheckpoint, received.signal.number, false, false,
            s_.rules.stop_graces.signal, decision.why);
}

void Stepper::On(const WorkersGone&) {
  if (s_.phase == Phase::kFinished) return;
  s_.alive.clear();
  s_.has_workers = false;
  s_.resting_since.reset();
  s_.stop_deadline = s_.dead_by = MonotonicTime::InfiniteFuture();
  if (s_.verdict.has_value()) return LeaveAndFinish();
  if (s_.phase == Phase::kStopping) Rejoin(s_.why);
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
  if (!s_.verdict.has_value()) {
    s_.stops[s_.epoch] = why;
    if (s_.stops.size() > kMostStopsTold) s_.stops.erase(s_.stops.begin());
  }
  const bool all_in_session =
      std::includes(s_.in_session.begin(), s_.in_session.end(), s_.alive.begin(), s_.alive.end());
  BeginStop(StopKind::kAbort, SIGTERM, false, true,
            all_in_session && !s_.alive.empty()
                ? std::min(s_.rules.session_abort_grace, s_.rules.stop_graces.abort)
                : s_.rules.stop_graces.abort,
            why);
}

void Stepper::Kill(const std::string& why) {
  // A close with success may have come since the signal.
  if (s_.ending_signal != 0 && s_.verdict->exit_code != 0) {
    const std::string how =
        s_.alive.empty()
            ? absl::StrCat(
                  "the workers were ended in order, but processes that they had left were "
                  "killed: ",
                  why)
            : absl::StrCat("workers that had not ended were killed: ", why,
                           "; what they had not saved is lost");
    s_.verdict = WithFailure(ResultOfSignal(s_.ending_signal, how), s_.failure);
  }
  s_.killed = true;
  s_.resting_since.reset();
  s_.stop_deadline = now_ + s_.rules.kill_patience;
  actions_.push_back(KillWorkers{why});
}

void Stepper::Rejoin(const std::string& why) {
  Enter(Phase::kConnecting, why);
  s_.has_succeeded = false;
  s_.store_port = 0;
  if (s_.linked) actions_.push_back(RestartStore{why});  // Else the next Welcome does.
}

Result Stepper::WithPast(Result result) const {
  std::map<Epoch, std::string> stops = s_.stops;
  if (s_.failure.has_value()) stops.erase(s_.epoch);  // It is told at length.
  return WithStops(WithFailure(std::move(result), s_.failure), stops);
}

void Stepper::EndWith(Result result, const std::string& why) {
  if (s_.phase == Phase::kFinished || s_.phase == Phase::kLeaving) return;
  if (!s_.verdict.has_value()) s_.verdict = std::move(result);
  if (s_.phase == Phase::kStopping) return;
  if (!s_.has_workers) return LeaveAndFinish();
  const bool may_finish = s_.phase == Phase::kSucceeded && s_.verdict->exit_code == 0;
  if (!may_finish) Abort(why);
}

void Stepper::SayLeave(bool has_workers) {
  const bool is_unfit = s_.verdict->exit_code == static_cast<int>(ExitCode::kUnfitNode);
  // How the last of them will end is not known yet.
  const bool is_early = has_workers && s_.ending_signal != 0 && !s_.alive.empty() && !s_.killed;
  const std::string why =
      is_early
          ? WithFailure(ResultOfSignal(s_.ending_signal, "its workers are being ended"), s_.failure)
                .explanation
          : s_.verdict->explanation;
  SendEvent(rendezvous::Leave{why, is_unfit, has_workers}, "this node ends");
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

}  // namespace convene::agent

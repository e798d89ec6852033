#include "agent/core/machine.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/core/explain.h"
#include "agent/core/stepper.h"
#include "tools/base/exit_code.h"

namespace convene::agent {

using rendezvous::Assignment;
using rendezvous::Close;
using rendezvous::Stop;
using rendezvous::StopKind;
using rendezvous::Welcome;

void Stepper::On(const FromDaemon& from) {
  const auto* welcome = std::get_if<Welcome>(&from.event.body);
  if (welcome != nullptr && welcome->term < s_.term) {
    return LeaveStream(absl::StrCat("it led once, in term ", welcome->term,
                                    ", and another daemon leads since: this node has met term ",
                                    s_.term));
  }
  s_.highest_epoch = std::max(s_.highest_epoch, from.event.epoch);
  if (welcome != nullptr) {
    s_.has_fence = !from.is_from_here;
    s_.endpoint = from.endpoint;
    OnWelcome(from.event.epoch, *welcome, from.hello_at);
  } else if (const auto* assignment = std::get_if<Assignment>(&from.event.body)) {
    OnAssignment(from.event.epoch, *assignment);
  } else if (const auto* stop = std::get_if<Stop>(&from.event.body)) {
    OnStop(*stop);
  } else if (std::holds_alternative<rendezvous::Heard>(from.event.body)) {
    OnHeard();
  } else if (const auto* over = std::get_if<rendezvous::HandOver>(&from.event.body)) {
    s_.holds_place = true;
    s_.handed_over = *over;
  } else {
    OnClose(std::get<Close>(from.event.body));
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
  s_.has_workers = true;
  Enter(Phase::kRunning, assignment.why);
  actions_.push_back(StartWorkers{epoch, assignment, assignment.why});
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
  // Else the stream broke meanwhile, and the check is made again after the next Welcome.
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
  // This node ends for good and its part of the group is broken now, so the others must not be
  // blamed for breaking next.
  if (s_.phase == Phase::kStopping && s_.verdict.has_value() &&
      !std::exchange(s_.said_leaving, true)) {
    SayLeave(/*has_workers=*/true);
  }
  const bool in_session = s_.in_session.count(exited.local_rank) > 0;
  if (!IsFailure(exited.status, in_session)) {
    if (s_.phase == Phase::kRunning && s_.alive.empty()) Succeed();
    return;
  }
  ExitStatus status = exited.status;
  status.lost_child = SayLostChild(exited.last_log_lines);
  const ExitVerdict verdict = ClassifyExit(status, in_session);
  rendezvous::WorkerFailure failure = FailureOf(exited.local_rank, exited.pid);
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
  // The worker may have ended, or been stopped, while it was examined.
  if (s_.phase != Phase::kRunning || hung.epoch != s_.epoch ||
      s_.alive.count(hung.local_rank) == 0) {
    return;
  }
  rendezvous::WorkerFailure failure = FailureOf(hung.local_rank, hung.pid);
  failure.exit_code = static_cast<int>(ExitCode::kTrainingFailed);  // It has none of its own.
  failure.why = hung.why;
  failure.last_log_lines = hung.last_log_lines;
  ReportFailure(std::move(failure));
}

rendezvous::WorkerFailure Stepper::FailureOf(int local_rank, int64_t pid) const {
  return {.global_rank = s_.assignment.first_global_rank + local_rank,
          .local_rank = local_rank,
          .host = s_.rules.hello.host,
          .pid = pid};
}

void Stepper::ReportFailure(rendezvous::WorkerFailure failure) {
  const std::string why = absl::StrCat("rank ", failure.global_rank, ": ", failure.why);
  if (failure.costs_budget && !s_.failure.has_value()) s_.failure = failure;
  s_.place_failure = failure;
  SendEvent(std::move(failure),
            why);  // Before anything else: the other nodes are waiting in a collective.
  Abort(why);
}

void Stepper::Succeed() {
  Enter(Phase::kSucceeded, "all workers ended with 0");
  s_.has_succeeded = true;
  SendEvent(rendezvous::WorkersSucceeded{}, s_.why);
}

void Stepper::On(const Timer&) {
  if (now_ >= s_.silent_at) {
    LeaveStream(s_.linked ? "it answers no heartbeats" : "it takes the Hello but says no Welcome");
  }
  if (s_.linked && now_ >= s_.heartbeat_at) SendHeartbeat();
  if (now_ >= s_.dial_at) Dial(s_.why);
  if (now_ >= s_.check_health_at) CheckHealth();
  if (now_ >= s_.tell_wait_at) TellWait();
  // A daemon that accepts the connection but sends no Welcome counts as absent.
  if (!s_.linked && s_.dialing && now_ >= s_.link_deadline + kOneTry) {
    LeaveStream("it accepts the connection but says no Welcome");
  }
  if (now_ >= s_.fence_at) Fence();
  if (now_ < s_.stop_deadline) return;
  if (s_.phase == Phase::kLeaving) return FinishNow(*s_.verdict);
  if (s_.phase == Phase::kSucceeded) {  // The plan of what is left behind gives up by itself.
    s_.stop_deadline = MonotonicTime::InfiniteFuture();
    actions_.push_back(KillWorkers{"the lease is over"});
  }
  if (s_.phase != Phase::kStopping) return;
  if (s_.killed) {
    return FinishNow(ResultOfUndeadWorkers(s_.rules.hello.host, s_.rules.kill_patience));
  }
  Kill(absl::StrCat("the grace is over (", s_.why, ")"));
}

Actions Step(State& state, const Event& event, MonotonicTime now, double random_fraction) {
  Stepper stepper(state, now, random_fraction);
  std::visit([&](const auto& e) { stepper.On(e); }, event);
  return stepper.Take();
}

MonotonicTime NextTimer(const State& state) {
  MonotonicTime next = std::min(std::min(state.heartbeat_at, state.dial_at), state.stop_deadline);
  next =
      std::min({next, state.fence_at, state.check_health_at, state.tell_wait_at, state.silent_at});
  if (!state.linked && state.dialing) next = std::min(next, state.link_deadline + kOneTry);
  return next;
}

const char* PhaseName(Phase phase) {
  constexpr const char* kNames[] = {"connecting", "waiting", "running", "stopping",
                                    "succeeded",  "leaving", "finished"};
  static_assert(std::size(kNames) == static_cast<size_t>(Phase::kFinished) + 1);
  return kNames[static_cast<size_t>(phase)];
}

}  // namespace convene::agent

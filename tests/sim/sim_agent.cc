#include "tests/sim/sim_agent.h"

#include <algorithm>
#include <csignal>
#include <utility>
#include <variant>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace convene::sim {
namespace {

using agent::ExitStatus;

constexpr absl::Duration kWork = absl::Seconds(3);  // an epoch left alone takes about this long
constexpr absl::Duration kQuickStop = absl::Milliseconds(300);
constexpr absl::Duration kSlowStop = absl::Seconds(40);  // beyond every grace
constexpr absl::Duration kKill = absl::Milliseconds(50);
constexpr absl::Duration kUpload = absl::Seconds(30);  // the longest that leftovers go on
constexpr absl::Duration kLeftoversStop = absl::Seconds(1);
constexpr absl::Duration kStep = absl::Milliseconds(200);

const ExitStatus kSuccess{};

}  // namespace

void SimAgent::Start() {
  simulation_.Note(name_, ": starts");
  ++life_;
  incarnation_ = incarnation_.Next();
  state_ = std::make_unique<agent::State>(rules_);
  is_paused_ = false;
  StopTime(false);
  tells_progress_ = simulation_.Chance(0.5);
  timer_planned_ = MonotonicTime::InfiniteFuture();
  Receive(agent::Begin{});
}

void SimAgent::Crash(bool whole_machine) {
  simulation_.Note(name_, ": crashes", whole_machine ? " with its machine" : "");
  if (stream_ != nullptr && whole_machine) {
    stream_->agent_left = stream_->is_broken = true;
  }
  End();
}

void SimAgent::End() {
  Disturb();
  HangUp();
  state_ = nullptr;
  ++life_;
  inbox_.clear();
  workers_.clear();
  has_leftovers_ = knows_success_ = false;
  ++group_;
  StopTime(false);
}

void SimAgent::HangUp() {
  if (stream_ != nullptr && !stream_->agent_left) stream_->daemon->HangUp(stream_);
  stream_ = nullptr;
}

void SimAgent::Pause() {
  simulation_.Note(name_, ": is paused");
  Disturb();
  is_paused_ = true;
  paused_at_ = simulation_.now();
}

void SimAgent::Suspend() {
  Pause();
  StopTime(true);
}

// The loop may see that time has passed before it reads what has come, or after.
void SimAgent::Resume() {
  simulation_.Note(name_, ": wakes up");
  is_paused_ = false;
  awake_since_ = simulation_.now();
  if (!is_up()) return;
  if (simulation_.Chance(0.5)) inbox_.push_front(agent::Timer{});
  const absl::Duration pause = simulation_.now() - paused_at_;
  if (pause > absl::Milliseconds(200)) inbox_.push_front(agent::Paused{pause});
  StopTime(false);
  Receive(agent::Timer{});
}

void SimAgent::StopTime(bool is_stopped) {
  are_workers_stopped_ = is_stopped;
  if (is_stopped) return;
  for (const auto& end : std::exchange(put_off_, {})) end();
}

void SimAgent::Cut() {
  simulation_.Note(name_, ": is cut off");
  Disturb();
  is_cut_ = true;
}

void SimAgent::Heal() {
  simulation_.Note(name_, ": is on the network again");
  is_cut_ = false;
  GoOn();
}

void SimAgent::GoOn() {
  std::vector<std::shared_ptr<Stream>> streams;
  streams.swap(streams_);
  for (const std::shared_ptr<Stream>& stream : streams) {
    if (stream->is_cut() && stream != stream_) streams_.push_back(stream);
    stream->daemon->Resume(stream);
  }
  if (stream_ != nullptr) streams_.push_back(stream_);
}

void SimAgent::LoseConnection(bool is_half_open) {
  if (stream_ == nullptr) return;
  simulation_.Note(name_, ": loses its connection", is_half_open ? ", half" : "");
  Disturb();
  stream_->daemon->Break(stream_, is_half_open);
}

void SimAgent::FailWorker(const ExitStatus& status) {
  if (!workers_.empty()) EndWorker({group_, *workers_.begin()}, status);
}

void SimAgent::Signal() {
  Disturb();
  Receive(agent::SignalReceived{{.number = SIGTERM, .at = simulation_.now()}});
}

bool SimAgent::IsFaithful() const {
  if (!is_up() || is_paused_ || is_cut_) return false;
  // The agent has ended that epoch's workers by itself, and the daemon has not heard of it.
  if (stream_ == nullptr) return false;
  const rendezvous::Job* const job = stream_->daemon->table().Find(state_->rules.hello.job_id);
  if (state_->phase == agent::Phase::kWaiting && job != nullptr &&
      job->state().phase() == rendezvous::Phase::kRunning &&
      job->state().epoch() == state_->epoch) {
    return false;
  }
  // Should the daemon die now, the agent does not know whether it died with the stream.
  if (state_->heard_at < state_->woke_at) return false;
  const bool has_phase = state_->phase == agent::Phase::kWaiting ||
                         state_->phase == agent::Phase::kRunning ||
                         state_->phase == agent::Phase::kSucceeded;
  return has_phase && state_->linked && state_->holds_place;
}

// Today's agent has no such event, so this sends the message of an agent that has.
void SimAgent::BeUnfit() {
  if (stream_ == nullptr || workers_.empty()) return;
  stream_->daemon->Say(stream_, state_->epoch, rendezvous::Leave{"health check", true});
  Crash(false);
}

void SimAgent::Calm() {
  is_calm_ = true;
  if (!workers_.empty()) PlanWork();
}

void SimAgent::CheckFencing() const {
  // When the job has succeeded, what its workers left may go on beside another job of that name.
  if (!has_workers() || knows_success_ || is_paused_ || are_workers_stopped_) return;
  if (invariants_.MayRun(simulation_.now(), serial_, rules_.hello.lease, awake_since_)) return;
  Expect(false, absl::StrCat(name_, " (", PhaseName(state_->phase), ": ", state_->why,
                             ") has workers of an epoch that a newer one followed a lease ago"));
}

void SimAgent::Receive(agent::Event event) {
  if (!is_up()) return;
  inbox_.push_back(std::move(event));
  Drain();
}

// Handles events one after the other, as the agent's loop does: events that an action causes come
// after those that wait.
void SimAgent::Drain() {
  if (is_draining_) return;
  is_draining_ = true;
  while (!inbox_.empty() && !is_paused_) {
    const agent::Event event = std::move(inbox_.front());
    inbox_.pop_front();
    Take(event);
  }
  is_draining_ = false;
}

void SimAgent::Take(const agent::Event& event) {
  const int life = life_;
  const agent::Phase before = state_->phase;
  if (const auto* from = std::get_if<agent::FromDaemon>(&event)) {
    const auto* close = std::get_if<rendezvous::Close>(&from->event.body);
    knows_success_ = close != nullptr && close->outcome == rendezvous::Outcome::kSucceeded &&
                     state_->has_succeeded;
  }
  agent::Actions actions = Step(*state_, event, simulation_.now(), simulation_.Fraction());
  if (state_->phase != before) {
    simulation_.Note(name_, ": ", PhaseName(before), " -> ", PhaseName(state_->phase), ": ",
                     state_->why);
  }
  for (const agent::Action& action : actions) {
    if (life != life_) return;
    std::visit([this](const auto& a) { Do(a); }, action);
  }
  if (life == life_) PlanTimer();
}

void SimAgent::PlanTimer() {
  const MonotonicTime due = NextTimer(*state_);
  if (due == timer_planned_ || due == MonotonicTime::InfiniteFuture()) return;
  timer_planned_ = due;
  simulation_.At(due, [this, life = life_, due] {
    if (life != life_ || due != timer_planned_) return;
    timer_planned_ = MonotonicTime::InfiniteFuture();
    if (!is_paused_) Receive(agent::Timer{});
  });
}

void SimAgent::Do(const agent::OpenStream& action) {
  HangUp();
  const auto fail = [this, life = life_](absl::Duration wait, agent::StreamEnded ended) {
    simulation_.After(wait, [this, life, ended = std::move(ended)] {
      if (life == life_) Receive(ended);
    });
  };
  SimDaemon& daemon = *daemons_[action.endpoint];
  if (!is_cut_ && daemon.refuses() && action.may_host && !action.handed_over.empty()) {
    daemon.Start(action.handed_over);
  }
  if (!is_cut_ && daemon.refuses()) {
    return fail(simulation_.Upto(absl::Milliseconds(50)),
                {absl::UnavailableError("refused"), simulation_.now()});
  }
  if (!daemon.leads() || daemon.is_cut()) {
    return fail(action.timeout, {absl::DeadlineExceededError("no answer")});
  }
  auto stream = std::make_shared<Stream>();
  stream->daemon = &daemon;
  stream->incarnation = incarnation_;
  stream->opened_at = simulation_.now();
  stream->is_faithful = [this, life = life_, self = std::weak_ptr<Stream>(stream)] {
    return life == life_ && stream_ == self.lock() && IsFaithful();
  };
  stream->is_cut = [this, &daemon] { return is_cut_ || daemon.is_cut(); };
  const auto listens = [this, life = life_, ear = std::weak_ptr<Stream>(stream)] {
    return life == life_ && stream_ == ear.lock();
  };
  stream->on_event = [this, listens](rendezvous::DaemonEvent event) {
    if (!listens()) return;
    if (std::holds_alternative<rendezvous::Assignment>(event.body)) {
      assigned_serial_ = invariants_.SerialOf(stream_->id);
    }
    Receive(agent::FromDaemon{std::move(event), stream_->opened_at});
  };
  stream->on_end = [this, listens](absl::Status status) {
    if (!listens()) return;
    Expect(!absl::IsAborted(status), "the latest stream of a process is ended for an older one");
    stream_->agent_left = true;
    stream_ = nullptr;
    Receive(agent::StreamEnded{std::move(status)});
  };
  if (streams_.size() > 8) streams_.erase(streams_.begin());
  streams_.push_back(stream);
  if (is_cut_) {
    // The try is given up, but its Hello may come through when the network is back.
    fail(action.timeout, {absl::DeadlineExceededError("no answer")});
    if (!simulation_.Chance(0.3)) return;
    stream->agent_left = true;
  } else {
    stream_ = stream;
  }
  rendezvous::Hello hello = action.hello;
  hello.said_at = stream->opened_at;
  daemon.SayHello(stream, hello);
  if (is_cut_) daemon.HangUp(stream);
}

void SimAgent::Do(const agent::CloseStream&) { HangUp(); }

void SimAgent::Do(const agent::Send& action) {
  if (stream_ == nullptr) return;
  rendezvous::AgentEvent event = action.event;
  if (auto* heartbeat = std::get_if<rendezvous::Heartbeat>(&event)) {
    if (tells_progress_ && !workers_.empty()) {
      const int64_t step = first_step_ + (simulation_.now() - started_at_) / kStep;
      heartbeat->progress = rendezvous::WorkerProgress{step, 5, "step"};
    }
  }
  stream_->daemon->Say(stream_, action.epoch, std::move(event));
}

void SimAgent::Do(const agent::StartWorkers& action) {
  Expect(!has_workers(), "workers start where others, or what they left, still run");
  serial_ = assigned_serial_;
  ++group_;
  StopTime(false);
  has_failed_ = false;
  started_at_ = simulation_.now();
  first_step_ = action.epoch.value() * 3;
  for (int rank = 0; rank < rules_.hello.local_world_size; ++rank) workers_.insert(rank);
  if (simulation_.Chance(0.5)) {
    for (const int rank : std::set<int>(workers_)) Receive(agent::SessionOpened{rank});
  }
  PlanWork();
}

// Some workers hang: only a stop ends them.
void SimAgent::PlanWork() {
  for (const int rank : workers_) {
    if (!is_calm_ && simulation_.Chance(0.05)) continue;
    PlanEnd(rank, kWork * (0.5 + simulation_.Fraction()), kSuccess);
  }
}

void SimAgent::PlanEnd(int local_rank, absl::Duration wait, const ExitStatus& status) {
  PlanEnd(Worker{group_, local_rank}, wait, status);
}

void SimAgent::PlanEnd(Worker worker, absl::Duration wait, const ExitStatus& status) {
  simulation_.After(wait, [this, worker, status] {
    if (!are_workers_stopped_ || status.signal == SIGKILL) return EndWorker(worker, status);
    put_off_.push_back([this, worker, status] { PlanEnd(worker, absl::ZeroDuration(), status); });
  });
}

void SimAgent::EndWorker(Worker worker, const ExitStatus& status) {
  if (worker.group != group_ || workers_.erase(worker.local_rank) == 0) return;
  if (status.exit_code != 0 || status.signal != 0) has_failed_ = true;
  agent::WorkerExited exited;
  exited.local_rank = worker.local_rank;
  exited.pid = 1000 + worker.local_rank;
  exited.status = status;
  const int life = life_;
  Receive(std::move(exited));
  if (life != life_ || worker.group != group_ || !workers_.empty()) return;
  if (has_failed_) return Receive(agent::WorkersGone{});
  invariants_.OnNodeSucceeded(serial_);
  Expect(is_paused_ || state_->phase != agent::Phase::kRunning, "a success is not told at once");
  if (state_->phase != agent::Phase::kSucceeded || simulation_.Chance(0.7)) {
    return Receive(agent::WorkersGone{});
  }
  has_leftovers_ = true;
  PlanLeftoversEnd(simulation_.Upto(kUpload));
}

void SimAgent::PlanLeftoversEnd(absl::Duration wait) {
  simulation_.After(wait, [this, group = group_] {
    if (group == group_ && std::exchange(has_leftovers_, false)) Receive(agent::WorkersGone{});
  });
}

void SimAgent::Do(const agent::StopWorkers& action) {
  if (has_leftovers_) PlanLeftoversEnd(simulation_.Upto(kLeftoversStop));
  for (const int rank : workers_) {
    ExitStatus status;
    const int how = simulation_.Between(0, 3);
    if (how == 0) status.signal = action.signal;
    if (how == 1) status.exit_code = 75;
    if (how == 2) status.exit_code = 1;  // a foreign program
    const bool is_slow = !is_calm_ && simulation_.Chance(0.1);
    PlanEnd(rank, simulation_.Upto(is_slow ? kSlowStop : kQuickStop), status);
  }
}

void SimAgent::Do(const agent::KillWorkers&) {
  if (has_leftovers_) PlanLeftoversEnd(simulation_.Upto(kKill));
  ExitStatus status;
  status.signal = SIGKILL;
  for (const int rank : workers_) PlanEnd(rank, simulation_.Upto(kKill), status);
}

void SimAgent::Do(const agent::RestWorkers&) { StopTime(true); }

void SimAgent::Do(const agent::WakeWorkers&) { StopTime(false); }

void SimAgent::Do(const agent::RestartStore&) {
  ++stores_;
  simulation_.After(simulation_.Upto(absl::Milliseconds(100)), [this, life = life_] {
    if (life == life_) Receive(agent::StoreStarted{simulation_.Between(1024, 65535)});
  });
}

void SimAgent::Do(const agent::Finish& action) {
  Expect(!knows_success_ || action.result.exit_code == 0,
         "a job that had succeeded ended otherwise");
  simulation_.Note(name_, ": finished with ", action.result.exit_code, ": ",
                   action.result.explanation);
  End();
}

}  // namespace convene::sim

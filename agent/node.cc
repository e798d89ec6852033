#include "agent/node.h"

#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "agent/core/explain.h"
#include "agent/custody/process_table.h"
#include "agent/output/first_cause.h"
#include "agent/output/last_lines.h"
#include "agent/workers/environment.h"
#include "rendezvous/net/listen.h"
#include "spdlog/spdlog.h"
#include "tools/base/logging.h"
#include "tools/base/random.h"
#include "tools/base/signals.h"
#include "tools/base/source_address.h"
#include "tools/base/status_macros.h"
#include "tools/base/stop_request.h"
#include "tools/base/text.h"
#include "worker_runtime/contract/names.h"

namespace convene::agent {
namespace {

// A command that was continued in the background looks so often whether its worker reads.
constexpr absl::Duration kBackgroundInterval = absl::Milliseconds(500);
// A loop that wakes up so late was suspended or frozen. Shorter pauses matter to no lease.
constexpr absl::Duration kPaused = absl::Milliseconds(200);
// So many lines tell how the rendezvous was lost, and how the search for it goes.
constexpr size_t kMostLossesTold = 16;
// The most lines of rendezvous::WorkerFailure.
constexpr size_t kMostFailureLines = 20;

Rules RulesOf(const AgentOptions& options) {
  const bool checks = !options.health_check.command.empty();
  rendezvous::Hello hello = options.hello;
  hello.may_host = options.may_host;
  return {.hello = std::move(hello),
          .endpoint = options.endpoint,
          .endpoints = absl::StrSplit(options.endpoint, ','),
          .store_host = options.store_host,
          .connect_timeout = options.connect_timeout,
          .awaits_node_rank = options.awaits_node_rank,
          .stop_graces = options.stop_graces,
          .has_health_check = checks || options.warm_workers > 0,
          .health_check_timeout = checks ? options.health_check.timeout : absl::ZeroDuration(),
          .kill_patience = options.kill_patience,
          .propagate_exit_code = options.propagate_exit_code};
}

std::string Variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// As under torchrun, whose static rendezvous ignores the variable.
bool SharesStore(const AgentOptions& options) {
  return options.store_at_rendezvous || Variable("TORCH_DISABLE_SHARE_RDZV_TCP_STORE") != "1";
}

// A worker with the terminal stands still while a person types there, so it has no automatic
// limits. Given limits still hold.
HangLimits HangLimitsOf(const AgentOptions& options, bool has_terminal) {
  HangLimits limits = options.hang_limits;
  limits.automatic = limits.automatic && !has_terminal;
  return limits;
}

// For Ready; none when they are not known, or too many.
std::vector<std::string> AddressesToTell() {
  const auto addresses = OwnAddresses(/*with_link_local=*/true);
  if (!addresses.ok() || addresses->size() > rendezvous::kMostAddresses) return {};
  return *addresses;
}

}  // namespace

Node::Node(const AgentOptions& options, std::string program, std::vector<HostPort> places)
    : options_(options),
      program_(std::move(program)),
      environment_(ParseEnvironment(environ, options.extra_environment)),
      shares_store_(SharesStore(options)),
      state_(RulesOf(options)),
      input_(STDIN_FILENO),
      terminal_worker_(
          TerminalWorker(input_.facts(), options.hello.local_world_size, options.debug_rank)),
      background_timer_(loop_, [this] { OnBackground(); }),
      custody_(loop_,
               [this] {
                 if (group_ != nullptr) group_->OnOrphanEnded();
               }),
      slurm_requeue_(loop_, environment_, [this](const std::string& line) { Log(line); }),
      signals_(TakeSignals(options.ending_signals)),
      suspend_signals_(TakeSignals({SIGTSTP})),
      console_(loop_, STDOUT_FILENO, STDERR_FILENO,
               {[this] {
                  hang_watch_.SetPaused(false);
                  if (group_ != nullptr) group_->SetPaused(false);
                },
                [this](OutputStream stream, const std::string& line) {
                  if (stream == OutputStream::kStderr) {
                    console_.WriteLine(OutputStream::kStdout, "", line);  // The log is there, too.
                  }
                  Warn(line);
                }}),
      hang_watch_(
          loop_, HangLimitsOf(options, terminal_worker_.has_value()), Variable("PATH"),
          {[this](WorkerHung hung, bool by_debugger) { OnHang(std::move(hung), by_debugger); },
           [this](const std::string& line) { Log(line); }}) {
  loop_.Watch(signals_.get(), [this] { OnSignal(); });
  loop_.Watch(suspend_signals_.get(), [this] { OnSuspend(); });
  RendezvousLink::Options link_options;
  link_options.places = std::move(places);
  link_options.may_host = options.may_host;
  link_options.served_by =
      absl::StrCat("the command of run \"", options.hello.job_id, "\" on ", options.hello.host);
  if (options.hosts_own_run_only) link_options.only_run = options.hello.job_id;
  link_options.taken_port_advice = options.taken_port_advice;
  link_options.store_bytes_max = options.store_bytes_max;
  link_options.credentials = options.credentials;
  link_options.incarnation = Incarnation(RandomU64());
  custody_.SetCompanions([this](pid_t session) {
    return session == slurm_requeue_.pid() ||
           (warm_pool_ != nullptr && warm_pool_->IsCompanion(session));
  });
  link_options.on_connection = [this](UniqueFd connection) {
    custody_.HoldConnection(std::move(connection));
  };
  link_ = std::make_unique<RendezvousLink>(
      loop_, link_options, [this](RendezvousLink::News&& news) { OnNews(std::move(news)); });
  log_publisher_ = std::make_unique<LogPublisher>(
      recent_lines_, LogPublisher::Node{rendezvous::AgentIdOf(link_options.incarnation),
                                        options.hello.host, options.hello.role});
  RunLogs::Options log_options;
  log_options.log = options.log;
  log_options.run_id = options.hello.job_id;
  log_options.local_world_size = options.hello.local_world_size;
  log_options.on_relief = [this] {
    if (group_ != nullptr) group_->OnDiskRelief();
  };
  log_options.on_say = [this](const std::string& line) { Log(line); };
  log_options.on_trouble = [this](const std::string& line) { Warn(line); };
  logs_ = std::make_unique<RunLogs>(loop_, std::move(log_options));
}

Node::~Node() = default;

Result Node::Run() {
  StartSessions(Variable("XDG_RUNTIME_DIR"));
  if (options_.debug_rank.has_value() && !input_.facts().in_foreground) {
    Log(absl::StrCat("--debug-rank ", *options_.debug_rank,
                     " gives no worker a terminal: this command's stdin is none, or this command "
                     "runs in the background (under Slurm: srun --pty)"));
  }
  if (!OpenTimerFile()) return *result_;
  if (options_.warm_workers > 0) StartWarmPool();
  Take(Begin{});
  while (!result_.has_value()) {
    if (!events_.empty()) {
      StepOnce();
      continue;
    }
    if (group_ != nullptr && console_.Congested()) {
      group_->SetPaused(true);
      hang_watch_.SetPaused(true);
    }
    MonotonicTime deadline = std::min(NextTimer(state_), held_until_);
    if (group_ != nullptr) deadline = std::min(deadline, group_->next_deadline());
    const bool is_ready = loop_.Wait(deadline);
    const absl::Duration late = Clock::Real().Now() - deadline;
    // Before what the callbacks tell: that came after the pause.
    if (late > kPaused) Take(Paused{late});
    if (is_ready) loop_.Serve();
    const MonotonicTime now = Clock::Real().Now();
    if (group_ != nullptr) group_->OnTime(now);
    ReportEnds();
    if (now >= held_until_) ReleaseHeld();
    if (now >= NextTimer(state_)) Take(Timer{});
  }
  WindUp();
  return *result_;
}

void Node::StartSessions(const std::string& parent) {
  auto sessions = SessionServer::Start(loop_, parent,
                                       {[this](int local_rank) { Take(SessionOpened{local_rank}); },
                                        [this](int local_rank) { Take(SessionLeft{local_rank}); }});
  if (sessions.ok()) {
    sessions_ = *std::move(sessions);
  } else {
    // Workers run without sessions: they are then stopped by signals, as under torchrun.
    Log(absl::StrCat("the workers get no sessions, so signals alone stop them: ",
                     sessions.status().message()));
  }
}

bool Node::BeginSessions(Epoch epoch) {
  if (sessions_ != nullptr && !sessions_->IsInPlace()) {
    Log(absl::StrCat(sessions_->path(),
                     " was removed, as a logout removes $XDG_RUNTIME_DIR: the workers' sessions "
                     "move to /tmp"));
    sessions_.reset();
    StartSessions("/tmp");
    if (timer_file_ != nullptr && Variable(contract::kTimerFile).empty()) {
      timer_file_.reset();  // It stood beside the socket.
      if (!OpenTimerFile()) return false;
    }
  }
  if (sessions_ != nullptr) sessions_->BeginEpoch(epoch, options_.hello.local_world_size);
  return true;
}

bool Node::OpenTimerFile() {
  if (Variable("TORCHELASTIC_ENABLE_FILE_TIMER") != "1") return true;
  std::string path = Variable(contract::kTimerFile);
  if (path.empty() && sessions_ != nullptr) path = sessions_->timers_path();
  TimerFile::Listener listener;
  listener.on_expired = [this](const TimerTable::Expired& expired) {
    const std::string why =
        absl::StrCat("its timer \"", Utf8(expired.scope, LastLines::kLongestLine),
                     "\" is over (torch.distributed.elastic.timer)");
    // The worker's stack is gathered first, for the report.
    if (!hang_watch_.Blame(static_cast<pid_t>(expired.pid), why)) timer_file_->Reap(expired.pid);
  };
  listener.on_log = [this](const std::string& line) { Log(line); };
  auto file = TimerFile::Create(loop_, path, std::move(listener));
  if (!file.ok()) {
    result_ = ResultOfTimerFile(file.status());
    return false;
  }
  timer_file_ = *std::move(file);
  return true;
}

void Node::StepOnce() {
  const Event event = std::move(events_.front());
  events_.pop_front();
  const Phase before = state_.phase;
  Actions actions = Step(state_, event, Clock::Real().Now(), RandomFraction());
  if (state_.phase != before) {
    spdlog::debug("agent {} -> {}: {}", PhaseName(before), PhaseName(state_.phase), state_.why);
  }
  for (Action& action : actions) {
    std::visit([this](auto& a) { Do(a); }, action);
  }
}

void Node::OnNews(RendezvousLink::News&& news) {
  if (auto* event = std::get_if<rendezvous::DaemonEvent>(&news)) {
    const auto* const welcome = std::get_if<rendezvous::Welcome>(&event->body);
    const bool is_old = welcome != nullptr && welcome->term < state_.term;  // not taken
    if (!is_old && !std::exchange(told_losses_, {}).empty()) Log("the rendezvous answers again");
    if (const auto* wanted = std::get_if<rendezvous::LogsWanted>(&event->body)) {
      return log_publisher_->Publish(*wanted, link_->endpoint());
    }
    return Take(FromDaemon{std::move(*event), link_->opened_at(), link_->is_hosting(),
                           link_->IsForThisNodeOnly() ? link_->endpoint().address() : ""});
  }
  const auto& status = std::get<absl::Status>(news);
  spdlog::debug("the stream ended: {}", status.ToString());
  const bool is_news = state_.ever_linked && !status.ok() && told_losses_.size() < kMostLossesTold;
  const std::vector<std::string>& endpoints = state_.rules.endpoints;
  const std::string loss = absl::StrCat(
      endpoints.size() > 1 ? absl::StrCat(endpoints[state_.at], ": ") : "", status.message());
  if (is_news && told_losses_.insert(loss).second) {
    Log(absl::StrCat("the stream to the rendezvous ended: ", loss));
  }
  Take(StreamEnded{status, rendezvous::AgentStream::RefusedAt(status)});
}

void Node::OnSignal() {
  signalfd_siginfo info;
  if (read(signals_.get(), &info, sizeof(info)) != sizeof(info)) return;
  const ReceivedSignal signal = SignalOf(info);
  told_to_end_at_ = std::min(told_to_end_at_, signal.at);
  link_->EndSoon();
  if (result_.has_value()) {
    // The machine has come to its end, but this process may serve other nodes yet.
    Log(state_.stop_request.Hear(signal).why);
  }
  Take(SignalReceived{signal});
  ReleaseHeld();
  slurm_requeue_.OnStop(options_.stop_graces.signal);
}

void Node::TakeEnd(Event event, bool may_be_of_stop) {
  const bool holds = held_until_ != MonotonicTime::InfiniteFuture();
  // Not state_.stop_request: a signal of this very round has yet to reach the machine.
  if (!holds && (!may_be_of_stop || IsToldToEnd())) return Take(std::move(event));
  if (!holds) held_until_ = Clock::Real().Now() + options_.echo_patience;
  held_.push_back(std::move(event));
}

void Node::ReleaseHeld() {
  held_until_ = MonotonicTime::InfiniteFuture();
  for (Event& event : std::exchange(held_, {})) Take(std::move(event));
}

void Node::OnSuspend() {
  signalfd_siginfo info;
  if (read(suspend_signals_.get(), &info, sizeof(info)) != sizeof(info)) return;
  Rest(SIGSTOP);
}

void Node::Rest(int signal) {
  if (group_ != nullptr) group_->PassOn(SIGSTOP);
  raise(signal);
  if (group_ != nullptr) group_->PassOn(SIGCONT);
  if (!terminal_worker_.has_value() || input_.IsInForeground()) return background_timer_.Cancel();
  background_timer_.Set(kBackgroundInterval, kBackgroundInterval);
}

void Node::OnBackground() {
  if (input_.IsInForeground()) return background_timer_.Cancel();
  if (group_ == nullptr || group_->gone()) return;
  const std::vector<pid_t> pids = group_->pids();
  const auto rank = static_cast<size_t>(*terminal_worker_);
  if (rank >= pids.size() || !input_.IsAwaitedBy(pids[rank])) return;
  if (!std::exchange(has_told_of_background_, true)) {
    Log("a worker waits for what is typed, but this command is in the background: all of it rests "
        "until it is in the foreground again (fg)");
  }
  // The whole job, as the kernel would: a shell sees it rest when every process of the group does.
  for (const ProcessEntry& entry : ProcessTable::Read()) {
    if (entry.group == getpgrp() && entry.pid != getpid()) SignalProcess(entry, SIGTTIN);
  }
  const MonotonicTime before = Clock::Real().Now();
  Rest(SIGTTIN);
  // The kernel stops no process of an orphaned group, and none that ignores the signal: then there
  // is no shell that could continue this command, and the worker keeps the terminal.
  if (Clock::Real().Now() - before < kBackgroundInterval / 10) background_timer_.Cancel();
}

void Node::Do(OpenStream& action) {
  spdlog::debug("opening the stream: {}", action.why);
  action.hello.publishes_logs = true;
  action.hello.log_directory = logs_->directory();
  link_->Open(action.hello, action.endpoint, action.timeout, action.may_host,
              {action.handed_over, action.handed_over_until});
}

void Node::Do(CloseStream& action) {
  spdlog::debug("closing the stream: {}", action.why);
  link_->Leave();
}

void Node::Do(Send& action) {
  std::string news;
  if (auto* failure = std::get_if<rendezvous::WorkerFailure>(&action.event)) {
    failure->kernel_lines = kernel_log_.LinesAbout(failure->pid);
    news = absl::StrCat("rank ", failure->global_rank, " (pid ", failure->pid,
                        ") failed: ", failure->why);
  }
  if (auto* heartbeat = std::get_if<rendezvous::Heartbeat>(&action.event)) {
    heartbeat->progress = hang_watch_.Progress();
    heartbeat->ranks = hang_watch_.TakeRanks();
  }
  if (auto* ready = std::get_if<rendezvous::Ready>(&action.event)) {
    if (!options_.open_store) ready->addresses = AddressesToTell();
  }
  link_->Send(action.epoch, std::move(action.event));
  if (!news.empty()) Log(news);
}

void Node::OnHang(WorkerHung hung, bool by_debugger) {
  // Without a debugger, the stacks that a worker wrote itself may tell more than the kernel's view.
  if (!by_debugger) {
    std::vector<std::string>& lines = hung.last_log_lines;
    std::vector<std::string> own = group_->last_log_lines(hung.local_rank);
    own.resize(std::min(own.size(), kMostFailureLines - std::min(lines.size(), kMostFailureLines)));
    lines.insert(lines.begin(), own.begin(), own.end());
  }
  const int64_t pid = hung.pid;
  Take(std::move(hung));
  if (timer_file_ != nullptr) timer_file_->Reap(pid);
}

void Node::ReportEnds() {
  if (ended_.empty()) return;
  std::vector<WorkerExited> ended = std::exchange(ended_, {});
  // Errors that workers record while they are being aborted are consequences, not causes.
  const bool may_be_cause =
      state_.phase == Phase::kRunning ||
      (state_.phase == Phase::kStopping && state_.stop_kind == rendezvous::StopKind::kCheckpoint);
  const auto has_failed = [](const WorkerExited& exited) {
    return exited.status.signal != 0 || exited.status.exit_code != 0;
  };
  if (may_be_cause && std::any_of(ended.begin(), ended.end(), has_failed)) {
    OrderByCause(logs_->ReadErrors(), state_.in_session, ended);
  }
  for (WorkerExited& exited : ended) {
    const bool is_of_stop =
        std::any_of(options_.ending_signals.begin(), options_.ending_signals.end(),
                    [&](int signal) { return IsDeathOf(signal, exited.status); });
    TakeEnd(std::move(exited), is_of_stop && state_.phase == Phase::kRunning);
  }
}

void Node::Do(StopWorkers& action) {
  hang_watch_.EndEpoch();
  Log(absl::StrCat(state_.has_succeeded ? "ending processes that the workers left behind, of epoch "
                                        : "stopping the workers of epoch ",
                   state_.epoch.value(), ": ", action.why));
  if (sessions_ != nullptr && action.session_line) {
    sessions_->SendToAll(action.kind == rendezvous::StopKind::kAbort ? contract::kSessionAbort
                                                                     : contract::kSessionCheckpoint,
                         action.why);
  }
  group_->Stop(action.signal, [&](int local_rank) {
    return !action.spare_sessions || sessions_ == nullptr || !sessions_->IsOpen(local_rank);
  });
}

void Node::Do(KillWorkers& action) {
  Log(absl::StrCat("killing the workers that are left: ", action.why));
  group_->Kill();
}

void Node::Do(RestWorkers& action) {
  Log(action.why);
  hang_watch_.SetPaused(true);
  group_->Rest();
}

void Node::Do(WakeWorkers& action) {
  Log(absl::StrCat("the workers of epoch ", state_.epoch.value(), " go on: ", action.why));
  group_->Wake();
  hang_watch_.SetPaused(false);
}

void Node::Do(RestartStore& action) {
  spdlog::debug("fresh store: {}", action.why);
  const bool at_rendezvous = options_.store_at_rendezvous && link_->is_hosting();
  if (at_rendezvous) link_->ServeStore(nullptr);
  store_.reset();  // First: its port may be the one to use again.
  worker_store_port_.Reset();
  StoreStarted started;
  if (shares_store_) {
    rendezvous::StoreServer::Options options;
    options.host = rendezvous::AddressToBind(options_.store_host);
    options.port = options_.store_port;
    options.listen = !at_rendezvous;
    options.bytes_max = options_.store_bytes_max;
    options.is_shut = true;  // until an assignment says from where the workers may come
    auto store = rendezvous::StoreServer::Start(options);
    if (!store.ok()) return Take(StoreFailed{store.status()});
    store_ = *std::move(store);
    started.port = at_rendezvous ? link_->hosted_port() : store_->port();
    if (at_rendezvous) link_->ServeStore(store_.get());
  } else {
    auto reserved = rendezvous::ReserveOn("0.0.0.0", options_.store_port);
    if (!reserved.ok()) return Take(StoreFailed{reserved.status()});
    worker_store_port_ = std::move(reserved->fd);
    started.port = reserved->port;
  }
  // The stream of a node that hosts goes to itself, and tells nothing of the way to others.
  if (options_.store_host_may_change && !link_->is_hosting()) started.host = link_->own_host();
  Take(std::move(started));
}

void Node::Do(Finish& action) { result_ = std::move(action.result); }

void Node::HandOnError() {
  const std::string path = Variable(contract::kErrorFile);
  if (path.empty() || result_->exit_code == 0 || !state_.failure.has_value()) return;
  const rendezvous::WorkerFailure& failure = *state_.failure;
  logs_->HandOnError(failure.local_rank, failure.signal != 0 ? -failure.signal : failure.exit_code,
                     path);
}

void Node::ClearRow() {
  console_.SetInPlace(OutputStream::kStdout, "", "");
  console_.Flush();
}

void Node::Log(const std::string& line) {
  ClearRow();
  spdlog::info("{}", line);
}

void Node::Warn(const std::string& line) {
  ClearRow();
  spdlog::warn("{}", line);
}

}  // namespace convene::agent

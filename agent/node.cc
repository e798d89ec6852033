#include "agent/node.h"

#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "agent/process/environment.h"
#include "spdlog/spdlog.h"
#include "tools/base/check.h"
#include "tools/base/random.h"
#include "worker_runtime/contract/names.h"

namespace convene::agent {
namespace {

// How long the reader of our output may take nothing at the end before the rest is given up.
constexpr absl::Duration kDrainPatience = absl::Seconds(5);
// How long all that happens after the result is known may take. It needs a few milliseconds; gRPC
// on a node without memory or threads never comes back.
constexpr absl::Duration kWindUpPatience = absl::Seconds(15);

Rules RulesOf(const AgentOptions& options) {
  Rules rules;
  rules.hello = options.hello;
  rules.endpoint = options.endpoint;
  rules.store_host = options.store_host;
  rules.connect_timeout = options.connect_timeout;
  rules.stop_grace = options.stop_grace;
  return rules;
}

std::string LogRoot(const AgentOptions& options) {
  if (options.log_directory.empty()) return "";
  const std::string run_id = absl::StrReplaceAll(options.hello.job_id, {{"/", "_"}});
  return absl::StrFormat("%s/%s_%08x", options.log_directory, run_id,
                         static_cast<uint32_t>(RandomU64()));
}

UniqueFd TakeSignals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGQUIT}) sigaddset(&set, signal);
  CONVENE_CHECK(pthread_sigmask(SIG_BLOCK, &set, nullptr) == 0);
  UniqueFd fd(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  CONVENE_CHECK(fd.valid());
  return fd;
}

}  // namespace

Node::Node(const AgentOptions& options, std::string program, const std::string& host, int port)
    : options_(options),
      program_(std::move(program)),
      log_root_(LogRoot(options)),
      state_(RulesOf(options)),
      signals_(TakeSignals()),
      console_(loop_, STDOUT_FILENO, STDERR_FILENO, [this] {
        if (group_ != nullptr) group_->SetPaused(false);
      }) {
  loop_.Watch(signals_.get(), [this] { OnSignal(); });
  RendezvousLink::Options link_options;
  link_options.host = host;
  link_options.port = port;
  link_options.may_host = options.may_host;
  link_options.incarnation = Incarnation(RandomU64());
  link_ = std::make_unique<RendezvousLink>(
      loop_, link_options, [this](RendezvousLink::News news) { OnNews(std::move(news)); });
}

Node::~Node() = default;

Result Node::Run() {
  const char* runtime_directory = std::getenv("XDG_RUNTIME_DIR");
  auto sessions = SessionServer::Start(loop_, runtime_directory == nullptr ? "" : runtime_directory,
                                       [this](int local_rank) { Take(SessionOpened{local_rank}); });
  if (sessions.ok()) {
    sessions_ = *std::move(sessions);
  } else {
    // Workers do without: they are then stopped by signals, as under torchrun.
    Log(absl::StrCat("no sessions: ", sessions.status().message()));
  }
  Take(Begin{});
  while (!result_.has_value()) {
    if (!events_.empty()) {
      StepOnce();
      continue;
    }
    if (group_ != nullptr && console_.Congested()) group_->SetPaused(true);
    MonotonicTime deadline = NextTimer(state_);
    if (group_ != nullptr) deadline = std::min(deadline, group_->next_deadline());
    loop_.RunOnce(deadline);
    const MonotonicTime now = Clock::Real().Now();
    if (group_ != nullptr) group_->OnTime(now);
    if (now >= NextTimer(state_)) Take(Timer{});
  }
  WindUp();
  return *result_;
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

void Node::OnNews(RendezvousLink::News news) {
  if (auto* event = std::get_if<rendezvous::DaemonEvent>(&news)) {
    return Take(FromDaemon{std::move(*event)});
  }
  const absl::Status& status = std::get<absl::Status>(news);
  if (!status.ok() && state_.ever_linked) {
    Log(absl::StrCat("the stream to the rendezvous ended: ", status.message()));
  } else {
    spdlog::debug("the stream ended: {}", status.ToString());
  }
  Take(StreamEnded{status});
}

void Node::OnSignal() {
  signalfd_siginfo info;
  if (read(signals_.get(), &info, sizeof(info)) != sizeof(info)) return;
  Take(SignalReceived{static_cast<int>(info.ssi_signo)});
}

void Node::Do(OpenStream& action) {
  spdlog::debug("opening the stream: {}", action.why);
  link_->Open(action.hello, action.timeout);
}

void Node::Do(CloseStream& action) {
  spdlog::debug("closing the stream: {}", action.why);
  link_->Close();
}

void Node::Do(Send& action) {
  if (const auto* failure = std::get_if<rendezvous::WorkerFailure>(&action.event)) {
    Log(absl::StrCat("rank ", failure->global_rank, " (pid ", failure->pid,
                     ") ended: ", failure->why));
  }
  link_->Send(action.epoch, std::move(action.event));
}

WorkerGroup::Worker Node::MakeWorker(const StartWorkers& action, int local_rank) const {
  WorkerPlace place;
  place.assignment = action.assignment;
  place.epoch = action.epoch;
  place.local_rank = local_rank;
  place.local_world_size = options_.hello.local_world_size;
  place.run_id = options_.hello.job_id;
  place.terminal = console_.IsTerminal(OutputStream::kStdout);
  if (sessions_ != nullptr) place.session_path = sessions_->path();
  WorkerGroup::Worker worker;
  const int rank = action.assignment.first_global_rank + local_rank;
  if (options_.prefix_lines) worker.prefix = absl::StrCat("[", rank, "] ");
  worker.in_place = rank == 0;
  if (!log_root_.empty()) {
    const std::string directory =
        absl::StrCat(log_root_, "/attempt_", action.assignment.restart_count, "/", local_rank);
    worker.stdout_log_file = directory + "/stdout.log";
    worker.stderr_log_file = directory + "/stderr.log";
    place.error_file = directory + "/error.json";
  }
  static const auto* const inherited =
      new std::map<std::string, std::string>(ParseEnvironment(environ));
  worker.environment = WorkerEnvironment(*inherited, options_.extra_environment, place);
  return worker;
}

void Node::Do(StartWorkers& action) {
  const int count = options_.hello.local_world_size;
  const rendezvous::Assignment& assignment = action.assignment;
  Log(absl::StrCat("epoch ", action.epoch.value(), ": node ", assignment.group_rank, " of ",
                   assignment.group_world_size, ", ranks ", assignment.first_global_rank, " to ",
                   assignment.first_global_rank + count - 1, " of ", assignment.world_size,
                   " start here (", action.why, ")"));
  if (sessions_ != nullptr) sessions_->BeginEpoch(action.epoch, count);
  std::vector<WorkerGroup::Worker> workers;
  for (int i = 0; i < count; ++i) workers.push_back(MakeWorker(action, i));
  WorkerGroup::Listener listener;
  listener.on_exit = [this](WorkerGroup::Exit exit) {
    if (sessions_ != nullptr) sessions_->HearAll();
    Take(WorkerExited{exit.local_rank, exit.pid, exit.status, std::move(exit.last_log_lines)});
  };
  listener.on_gone = [this] { Take(WorkersGone{}); };
  group_ = std::make_unique<WorkerGroup>(loop_, console_, std::move(listener));
  const absl::Status status = group_->Start(program_, options_.command, workers);
  // Before WorkersGone, which may be waiting already.
  if (!status.ok()) events_.push_front(SpawnFailed{status});
}

void Node::Do(StopWorkers& action) {
  Log(absl::StrCat("stopping the workers of epoch ", state_.epoch.value(), ": ", action.why));
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

void Node::Do(RestartStore& action) {
  spdlog::debug("fresh store: {}", action.why);
  store_.reset();  // First: its port may be the one to use again.
  rendezvous::StoreServer::Options options;
  options.port = options_.store_port;
  auto store = rendezvous::StoreServer::Start(options);
  if (!store.ok()) return Take(StoreFailed{store.status()});
  store_ = *std::move(store);
  Take(StoreStarted{store_->port()});
}

void Node::Do(Finish& action) { result_ = std::move(action.result); }

void Node::WindUp() {
  wind_up_.emplace(
      kWindUpPatience, result_->exit_code,
      absl::StrCat("convene: ", result_->explanation,
                   "\nconvene: the connection to the rendezvous did not close within ",
                   absl::FormatDuration(kWindUpPatience), "; ended without waiting for it"));
  if (!console_.Drain(kDrainPatience)) {
    spdlog::warn("nobody reads this command's output: the last of it is lost");
  }
  group_.reset();
  link_->Close();
  link_->StopHosting();
}

void Node::Log(const std::string& line) {
  console_.SetInPlace(OutputStream::kStdout, "", "");
  console_.Flush();
  spdlog::info("{}", line);
}

}  // namespace convene::agent

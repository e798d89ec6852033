#include "launcher/launch/launch_command.h"

#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <filesystem>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "agent/custody/program.h"
#include "agent/output/console.h"
#include "agent/workers/environment.h"
#include "launcher/kept_token.h"
#include "launcher/launch/fleet.h"
#include "launcher/launch/host_link.h"
#include "launcher/launch/plan.h"
#include "launcher/terminal_text.h"
#include "rendezvous/lock/token.h"
#include "spdlog/spdlog.h"
#include "tools/base/core_files.h"
#include "tools/base/environment.h"
#include "tools/base/event_loop.h"
#include "tools/base/exit_code.h"
#include "tools/base/files.h"
#include "tools/base/logging.h"
#include "tools/base/loop_timer.h"
#include "tools/base/random.h"
#include "tools/base/resource_limits.h"
#include "tools/base/signals.h"
#include "tools/base/status_macros.h"
#include "tools/base/text.h"

namespace convene::launcher {
namespace {

using agent::OutputStream;

// Below the kernel's ephemeral ports (32768), and beside the ports that people write.
constexpr int kFirstPort = 20000;
constexpr int kPorts = 9000;
constexpr int64_t kOwnFiles = 32;
constexpr int64_t kFilesPerHost = 4;
// Of ssh, for its explanation.
constexpr size_t kMostLastLines = 10;
// When the reader of our output takes nothing for so long at the end, the rest is given up.
constexpr absl::Duration kDrainPatience = absl::Seconds(5);

absl::StatusOr<std::vector<LaunchHost>> ReadHostfile(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadFile(path);
  if (!text.ok()) return Annotate(text.status(), "the list of hosts");
  return ParseHostfile(*text, path);
}

absl::StatusOr<std::vector<LaunchHost>> ReadHosts(const LaunchFlags& flags,
                                                  const EnvironmentLookup& environment) {
  if (!flags.hostfile.empty()) return ReadHostfile(flags.hostfile);
  if (const auto file = environment("PBS_NODEFILE")) return ReadHostfile(*file);
  if (const auto hosts = environment("LSB_MCPU_HOSTS")) return ParseLsfHosts(*hosts);
  if (const auto file = environment("LSB_DJOB_HOSTFILE")) return ReadHostfile(*file);
  if (const auto hosts = environment("LSB_HOSTS")) {
    return ParseHostfile(absl::StrReplaceAll(*hosts, {{" ", "\n"}}), "LSB_HOSTS");
  }
  return absl::InvalidArgumentError(
      "no list of hosts: give --hostfile FILE with a line a host, such as `n1 slots=8`. A PBS or "
      "LSF job has its own list; under Slurm use `srun convene run`");
}

// Like DeepSpeed's: of the home directory, then of this one.
std::vector<VariableFile> ReadVariableFiles(const EnvironmentLookup& environment) {
  std::vector<VariableFile> files;
  for (const std::string& path :
       {environment("HOME").value_or("") + "/.deepspeed_env", std::string(".deepspeed_env")}) {
    if (const auto text = ReadFile(path); text.ok()) files.push_back({path, *text});
  }
  return files;
}

absl::StatusOr<LaunchPlan> ReadPlan(const LaunchFlags& flags) {
  const EnvironmentLookup environment = ProcessEnvironment();
  CONVENE_ASSIGN_OR_RETURN(std::vector<LaunchHost> hosts, ReadHosts(flags, environment));
  CONVENE_ASSIGN_OR_RETURN(hosts, ChooseHosts(std::move(hosts), flags.choice));
  LaunchSurroundings surroundings;
  std::error_code error;
  surroundings.directory = std::filesystem::current_path(error).string();
  if (error) return ErrnoStatus(error.value(), "find the current directory");
  surroundings.own_program = std::filesystem::read_symlink("/proc/self/exe", error).string();
  surroundings.random_id = absl::StrFormat("%016x", RandomU64());
  surroundings.random_port = kFirstPort + static_cast<int>(RandomFraction() * kPorts);
  Variables own = agent::ParseEnvironment(environ);
  // The flags' reader has taken the variable away; the hosts' agents want it, and take it away too.
  const std::string& token = flags.run.options.credentials.join_token;
  if (!token.empty() && !WasGiven(flags, "join-token-file")) {
    own[rendezvous::kTokenVariable] = token;
  }
  CONVENE_ASSIGN_OR_RETURN(surroundings.variables,
                           ExportedVariables(own, ReadVariableFiles(environment), flags.exports));
  return MakeLaunchPlan(flags, hosts, surroundings);
}

std::vector<int> EndingSignals() {
  std::vector<int> signals = {SIGTERM, SIGINT, SIGQUIT};
  // Under nohup the end of the terminal's session is not the end of the run.
  if (!IsIgnored(SIGHUP)) signals.push_back(SIGHUP);
  return signals;
}

// Carries out what the fleet decides, in one loop.
class Launch {
 public:
  // `program`: FindProgram's answer for the command that reaches hosts.
  Launch(LaunchPlan plan, std::string program)
      : plan_(std::move(plan)),
        program_(std::move(program)),
        fleet_(plan_.fleet),
        signals_(TakeSignals(EndingSignals())),
        suspend_signals_(TakeSignals({SIGTSTP})),
        console_(loop_, STDOUT_FILENO, STDERR_FILENO,
                 {[this] { SetPaused(false); },
                  [this](OutputStream stream, const std::string& line) {
                    if (stream == OutputStream::kStderr) {
                      console_.WriteLine(OutputStream::kStdout, "",
                                         line);  // The log is there, too.
                    }
                    spdlog::warn("{}", line);
                  }}),
        heartbeat_(loop_, [this] { SendAll(Request::kNone); }),
        links_(plan_.tasks.size()),
        last_lines_(plan_.tasks.size()) {
    loop_.Watch(signals_.get(), [this] { OnSignal(); });
    loop_.Watch(suspend_signals_.get(), [this] { OnSuspend(); });
  }

  int Run() {
    const absl::Duration period = plan_.fleet.ssh.link_timeout / kHeartbeatsPerTimeout;
    heartbeat_.Set(period, period);
    Carry(fleet_.Begin(Now()));
    while (!fleet_.result().has_value()) {
      loop_.RunOnce(ended_.empty() ? fleet_.next_deadline() : Now());
      console_.Flush();
      if (console_.Congested()) SetPaused(true);
      // Links end within their own callbacks, so that they are destroyed here.
      for (const auto& [host, end] : std::exchange(ended_, {})) {
        links_[host].reset();
        Carry(fleet_.LinkEnded(host, end, Now()));
      }
      if (Now() >= fleet_.next_deadline()) Carry(fleet_.OnTime(Now()));
    }
    if (!console_.Drain(kDrainPatience)) {
      spdlog::warn("the reader of this command's output takes nothing more: lines are lost");
    }
    const std::string loss = console_.Loss();
    if (!loss.empty()) spdlog::warn("output that could not be written is lost: {}", loss);
    return *fleet_.result();
  }

 private:
  static MonotonicTime Now() { return Clock::Real().Now(); }

  void Carry(const std::vector<FleetAction>& actions) {
    for (const FleetAction& action : actions) {
      std::visit([this](const auto& one) { Do(one); }, action);
    }
  }

  void Do(const DialHost& action) {
    const size_t host = action.host;
    last_lines_[host].clear();
    HostLink::Listener listener;
    listener.on_heard = [this, host] { fleet_.HeardFrom(host, Now()); };
    listener.on_line = [this, host](OutputStream stream, absl::string_view line) {
      OnLine(host, stream, line);
    };
    listener.on_end = [this, host](int exit_code) {
      const std::deque<std::string>& lines = last_lines_[host];
      ended_.push_back({host, {exit_code, {lines.begin(), lines.end()}}});
    };
    auto link = HostLink::Start(loop_, program_, plan_.commands[host],
                                EncodeTask(plan_.tasks[host]), std::move(listener));
    if (link.ok()) {
      links_[host] = *std::move(link);
    } else {
      const std::string why(link.status().message());
      ended_.push_back({host, {static_cast<int>(ExitCodeForStatus(link.status())), {why}}});
    }
  }
  void Do(const TellHost& action) {
    if (links_[action.host] != nullptr) links_[action.host]->Send(action.request);
  }
  void Do(const CloseLink& action) {
    if (links_[action.host] != nullptr) links_[action.host]->Kill();
  }
  void Do(const SayLine& action) {
    console_.Flush();
    action.is_error ? spdlog::error("{}", action.line) : spdlog::info("{}", action.line);
  }

  void OnLine(size_t host, OutputStream stream, absl::string_view line) {
    if (stream == OutputStream::kStderr) {
      if (const auto news = ReadNews(line); news.has_value()) {
        last_lines_[host].clear();  // The lines before are not about the link's end.
        return Carry(news->exit_code.has_value() ? fleet_.AgentEnded(host, *news->exit_code, Now())
                                                 : fleet_.Started(host, Now()));
      }
      last_lines_[host].push_back(Printable(line.substr(0, agent::LineAssembler::kLongestLine)));
      if (last_lines_[host].size() > kMostLastLines) last_lines_[host].pop_front();
    }
    const std::string prefix = absl::StrCat(plan_.fleet.hosts[host], ": ");
    if (!console_.IsTerminal(stream)) return console_.WriteLine(stream, prefix, line);
    console_.WriteLine(stream, prefix, ForTerminal(line));
  }

  void OnSignal() {
    signalfd_siginfo info;
    if (read(signals_.get(), &info, sizeof(info)) != sizeof(info)) return;
    Carry(fleet_.Heard(convene::SignalOf(info), Now()));
  }

  void OnSuspend() {
    signalfd_siginfo info;
    if (read(suspend_signals_.get(), &info, sizeof(info)) != sizeof(info)) return;
    Do(
        SayLine{"Ctrl-Z has no effect here: hosts that heard nothing from this command would end "
                "their agents. Ctrl-C stops the job"});
  }

  void SetPaused(bool paused) {
    fleet_.SetDeaf(paused, Now());
    for (const auto& link : links_) {
      if (link != nullptr) link->SetPaused(paused);
    }
  }

  void SendAll(Request request) {
    for (const auto& link : links_) {
      if (link != nullptr) link->Send(request);
    }
  }

  const LaunchPlan plan_;
  const std::string program_;
  Fleet fleet_;
  EventLoop loop_;
  UniqueFd signals_;
  UniqueFd suspend_signals_;
  agent::Console console_;
  LoopTimer heartbeat_;
  std::vector<std::unique_ptr<HostLink>> links_;  // of each host; null: none now
  std::vector<std::deque<std::string>> last_lines_;
  std::vector<std::pair<size_t, LinkEnd>> ended_;
};

// Makes the run's token, and hands it to all hosts; keeps it for this user's other commands while
// the answer lives. Where it cannot be kept the door stays open, as nobody could look behind it.
std::unique_ptr<TokenFile> LockDoor(LaunchPlan* plan) {
  if (plan->door.empty()) return nullptr;
  LeaveNoCoreFile();
  const KeptToken token = {
      plan->door, plan->run_id,
      absl::StrFormat("%016x%016x%016x%016x", RandomU64(), RandomU64(), RandomU64(), RandomU64())};
  const std::string folder = KeptTokensFolder(ProcessEnvironment());
  auto file = TokenFile::Keep(folder, token);
  if (!file.ok()) {
    spdlog::warn(
        "the rendezvous has no join token, as there is no place to keep one ({}): everyone who "
        "reaches {} joins, reads and looks. Set XDG_STATE_HOME, or give --join-token-file",
        std::string(file.status().message()), plan->door);
    return nullptr;
  }
  for (HostTask& task : plan->tasks) {
    task.variables.emplace_back(rendezvous::kTokenVariable, token.token);
  }
  plan->reasons.push_back(absl::StrCat("a join token locks ", plan->door, ": `convene status ",
                                       plan->run_id, "`, logs, events and incidents find it in ",
                                       folder, " (--open-door: none)"));
  return *std::move(file);
}

}  // namespace

absl::StatusOr<int> LaunchCommand(const LaunchFlags& flags) {
  CONVENE_ASSIGN_OR_RETURN(LaunchPlan plan, ReadPlan(flags));
  const char* const search_path = std::getenv("PATH");
  CONVENE_ASSIGN_OR_RETURN(
      std::string program,
      agent::FindProgram(plan.commands[0][0], search_path == nullptr ? "" : search_path));
  const int64_t files = kOwnFiles + kFilesPerHost * static_cast<int64_t>(plan.tasks.size());
  CONVENE_RETURN_IF_ERROR(EnsureOpenFiles(files, files));
  const std::unique_ptr<TokenFile> token = LockDoor(&plan);
  for (const std::string& reason : plan.reasons) spdlog::info("{}", reason);
  // When the reader of our output or a host's ssh goes away, write fails; the process does not end.
  signal(SIGPIPE, SIG_IGN);
  signal(SIGXFSZ, SIG_IGN);
  const int exit_code = Launch(std::move(plan), std::move(program)).Run();
  FlushLog();
  return exit_code;
}

}  // namespace convene::launcher

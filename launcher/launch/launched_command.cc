#include "launcher/launch/launched_command.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <optional>

#include "absl/strings/str_cat.h"
#include "agent/custody/custody.h"
#include "launcher/launch/task.h"
#include "spdlog/spdlog.h"
#include "tools/base/clock.h"
#include "tools/base/core_files.h"
#include "tools/base/exit_code.h"
#include "tools/base/logging.h"
#include "tools/base/patient_log.h"
#include "tools/base/shared_output.h"
#include "tools/base/signals.h"
#include "tools/base/status_macros.h"
#include "tools/base/text.h"
#include "tools/base/unique_fd.h"
#include "worker_runtime/contract/names.h"

namespace convene::launcher {
namespace {

constexpr absl::Duration kTaskPatience = absl::Minutes(1);
constexpr absl::Duration kNameInterval = absl::Milliseconds(100);
// After a request to end at once, what is left of the job gets this time to be gone.
constexpr absl::Duration kKillPatience = absl::Seconds(6);
// One marked line, to a reader that may stand still.
constexpr absl::Duration kTellPatience = absl::Seconds(5);
constexpr size_t kMostNamed = 5;

MonotonicTime Now() { return Clock::Real().Now(); }

int PollMilliseconds(MonotonicTime deadline) {
  if (deadline == MonotonicTime::InfiniteFuture()) return -1;
  const int64_t left = absl::ToInt64Milliseconds(deadline - Now()) + 1;
  return static_cast<int>(std::clamp<int64_t>(left, 0, 60'000));
}

void Tell(const std::string& line) {
  PatientLog(STDERR_FILENO, kTellPatience).Add(absl::StrCat(line, "\n"));
}

// Tells `convene launch` that this host lives. While the reader of stderr takes nothing, it is left
// out: then output waits there, which tells the same.
class Heartbeat {
 public:
  explicit Heartbeat(absl::Duration link_timeout)
      : period_(link_timeout / kHeartbeatsPerTimeout), due_(Now()) {}

  MonotonicTime due() const { return due_; }
  void SendIfDue() {
    if (Now() < due_) return;
    due_ = Now() + period_;
    std::string mark(HeartbeatMark());
    stderr_.Write(&mark);
  }

 private:
  SharedOutput stderr_{STDERR_FILENO};
  const absl::Duration period_;
  MonotonicTime due_;
};

// The bytes from `convene launch`.
class Link {
 public:
  // Waits until something comes, or `deadline`. The bytes, "" at the deadline; nullopt: the end.
  std::optional<std::string> Read(MonotonicTime deadline) {
    pollfd ready = {STDIN_FILENO, POLLIN, 0};
    if (poll(&ready, 1, PollMilliseconds(deadline)) <= 0) return "";
    char buffer[4096];
    const ssize_t n = read(STDIN_FILENO, buffer, sizeof(buffer));
    if (n < 0 && errno == EINTR) return "";
    if (n <= 0) return std::nullopt;
    return std::string(buffer, static_cast<size_t>(n));
  }
};

absl::StatusOr<HostTask> ReadTask(Link& link) {
  TaskReader reader;
  const MonotonicTime deadline = Now() + kTaskPatience;
  while (!reader.task().has_value()) {
    const auto bytes = link.Read(deadline);
    if (!bytes.has_value() || (bytes->empty() && Now() >= deadline)) {
      return absl::InvalidArgumentError(
          "`convene launched` is what `convene launch` starts on each host; it got no task on its "
          "stdin. To start this node's part by hand, use `convene run`");
    }
    // Requests come only after this process has said that it started.
    CONVENE_RETURN_IF_ERROR(reader.Add(*bytes).status());
  }
  return *reader.task();
}

absl::Status Enter(const HostTask& task) {
  if (chdir(task.directory.c_str()) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("this host has no directory ", task.directory, " (", strerror(errno),
                     "), in which `convene launch` was called: share it, or call it in one that "
                     "all hosts have"));
  }
  for (const auto& [name, value] : task.variables) {
    setenv(name.c_str(), value.c_str(), 1);  // NOLINT(concurrency-mt-unsafe): no thread runs
  }
  return absl::OkStatus();
}

// A socket that only one process of this host and user can have. The kernel takes it back when that
// process and its agent have ended, however they end.
UniqueFd TakeName(const std::string& name) {
  UniqueFd fd(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  const std::string text = absl::StrCat("convene-launched.", getuid(), ".", name);
  const size_t length = std::min(text.size(), sizeof(address.sun_path) - 1);
  // The end of the name has the rank. A first byte of 0 makes the name abstract.
  memcpy(address.sun_path + 1, text.data() + text.size() - length, length);
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
  if (bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), size) != 0) fd.Reset();
  return fd;
}

// In the environment of all that comes from the agents of this name, beside the tokens of the
// agents themselves.
std::string TokenOf(const HostTask& task) {
  return absl::StrCat("launched.", getuid(), ".", task.name);
}

// Ends the processes of a killed agent whose guardian was killed too. REQUIRES: no agent of this
// name lives.
void EndLeftovers(const HostTask& task) {
  const std::vector<std::string> left = agent::KillMarked(TokenOf(task) + ":", kKillPatience);
  if (left.empty()) return;
  spdlog::warn("an agent of run and rank {} was killed here and left {}: killed now", task.name,
               JoinCapped(left, kMostNamed));
}

// Waits for an agent of the same name, of a launch that lost its link, to end. Invalid: the present
// launch has gone.
UniqueFd WaitForName(const HostTask& task, Link& link, Heartbeat& heartbeat) {
  for (bool is_first = true;; is_first = false) {
    UniqueFd name = TakeName(task.name);
    if (name.valid()) return name;
    if (is_first) {
      spdlog::info("an agent of run and rank {} is still on this host: waiting until it has ended",
                   task.name);
    }
    heartbeat.SendIfDue();
    if (!link.Read(Now() + kNameInterval).has_value()) return UniqueFd();
  }
}

// The parent's part: between the link and the agent.
class Watcher {
 public:
  Watcher(Link& link, Heartbeat& heartbeat, pid_t agent, const HostTask& task)
      : link_(link),
        heartbeat_(heartbeat),
        agent_(agent),
        task_(task),
        pidfd_(static_cast<int>(syscall(SYS_pidfd_open, agent, 0))),
        signals_(TakeSignals({SIGTERM, SIGINT, SIGHUP, SIGQUIT})),
        link_timeout_(task.link_timeout),
        silent_at_(Now() + link_timeout_) {}

  // Returns the agent's exit code.
  int Run() {
    while (true) {
      pollfd ready[] = {{pidfd_.get(), POLLIN, 0},
                        {signals_.get(), POLLIN, 0},
                        {is_linked_ ? STDIN_FILENO : -1, POLLIN, 0}};
      poll(
          ready, 3,
          PollMilliseconds(is_linked_ ? std::min(silent_at_, heartbeat_.due()) : heartbeat_.due()));
      if (ready[0].revents != 0) break;
      if (ready[1].revents != 0) PassOn();
      if (ready[2].revents != 0) HearLink();
      heartbeat_.SendIfDue();
      if (is_linked_ && Now() >= silent_at_) {
        Unlink(absl::StrCat("nothing came from `convene launch` for ",
                            absl::FormatDuration(link_timeout_)));
      }
    }
    int status = 0;
    while (waitpid(agent_, &status, 0) < 0 && errno == EINTR) {
    }
    if (at_once_) AwaitTheRest();
    // Its guardian ends them too, where it lives.
    if (WIFSIGNALED(status)) EndLeftovers(task_);
    return WIFSIGNALED(status) ? ExitCodeForSignal(WTERMSIG(status)) : WEXITSTATUS(status);
  }

 private:
  void PassOn() {
    signalfd_siginfo info;
    if (read(signals_.get(), &info, sizeof(info)) != sizeof(info)) return;
    kill(agent_, static_cast<int>(info.ssi_signo));
  }

  void HearLink() {
    const auto bytes = link_.Read(Now());
    if (!bytes.has_value()) return Unlink("`convene launch` has gone");
    silent_at_ = Now() + link_timeout_;
    for (const char byte : *bytes) {
      const auto request = static_cast<Request>(byte);
      if (const int signal = SignalIn(request); signal != 0) kill(agent_, signal);
      if (request != Request::kAtOnce) continue;
      at_once_ = true;
      // Its guardian ends all that it started.
      kill(agent_, SIGKILL);
    }
  }

  void Unlink(const std::string& why) {
    is_linked_ = false;
    spdlog::warn("{}: this host's part of the job stops", why);
    kill(agent_, SIGTERM);
  }

  // The processes of a killed agent become this one's children.
  static void AwaitTheRest() {
    const MonotonicTime deadline = Now() + kKillPatience;
    while (Now() < deadline) {
      const pid_t pid = waitpid(-1, nullptr, WNOHANG);
      if (pid < 0) return;  // None is left.
      if (pid == 0) poll(nullptr, 0, 5);
    }
  }

  Link& link_;
  Heartbeat& heartbeat_;
  const pid_t agent_;
  const HostTask& task_;
  const UniqueFd pidfd_;
  const UniqueFd signals_;
  const absl::Duration link_timeout_;
  MonotonicTime silent_at_;
  bool is_linked_ = true;
  bool at_once_ = false;
};

// In the child. The agent must not read requests as its workers' input, and must not outlive the
// process that hears them.
void LeaveLink(pid_t watcher) {
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != watcher) raise(SIGTERM);
  const int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
  dup2(null, STDIN_FILENO);
  close(null);
}

}  // namespace

absl::StatusOr<int> LaunchedCommand(
    const std::function<absl::StatusOr<int>(const std::vector<std::string>&)>& run) {
  Link link;
  LeaveNoCoreFile();  // The task may bring the join token.
  CONVENE_ASSIGN_OR_RETURN(const HostTask task, ReadTask(link));
  CONVENE_RETURN_IF_ERROR(Enter(task));
  signal(SIGPIPE, SIG_IGN);
  Heartbeat heartbeat(task.link_timeout);
  heartbeat.SendIfDue();
  const UniqueFd name = WaitForName(task, link, heartbeat);
  if (!name.valid()) return absl::UnavailableError("`convene launch` has gone");
  EndLeftovers(task);
  // The agent puts its own token behind it. Only programs that are started from now on have it.
  setenv(contract::kAgentToken, TokenOf(task).c_str(), 1);  // NOLINT(concurrency-mt-unsafe)
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  Tell(StartedLine());
  const pid_t watcher = getpid();
  const pid_t agent = fork();
  if (agent < 0) return ErrnoStatus(errno, "fork");
  if (agent == 0) {
    LeaveLink(watcher);
    return run(task.arguments);
  }
  const int exit_code = Watcher(link, heartbeat, agent, task).Run();
  FlushLog();
  Tell(EndedLine(exit_code));
  return exit_code;
}

}  // namespace convene::launcher

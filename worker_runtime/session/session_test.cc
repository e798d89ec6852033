#include "worker_runtime/session/session.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <string>

#include "absl/strings/str_cat.h"
#include "tools/base/clock.h"
#include "tools/base/files.h"
#include "tools/base/stop_request.h"
#include "tools/base/testing/poll.h"
#include "tools/base/testing/status_testing.h"
#include "tools/base/testing/temp_dir.h"
#include "tools/base/unique_fd.h"

namespace convene::worker {
namespace {

using convene::testing::PollUntil;
using convene::testing::TempDir;

constexpr char kSocketName[] = "agent.sock";
// A worker or an agent that hangs ends by SIGALRM, not the test run.
constexpr unsigned kPatienceSeconds = 30;

char Code(StopReason reason) { return static_cast<char>('0' + static_cast<int>(reason)); }

// Tells each change of its stop token as one byte to `report`.
[[noreturn]] void BeWorker(const Contract& contract, int report, const std::string& terminal,
                           bool leaves) {
  alarm(kPatienceSeconds);
  // The first terminal that a session's leader opens becomes its controlling terminal.
  if (!terminal.empty() && (setsid() < 0 || open(terminal.c_str(), O_RDWR) < 0)) _exit(1);
  signal(SIGHUP, SIG_DFL);  // the test may run under nohup
  BlockStopSignals();
  StopToken token;
  token.Watch();
  const auto session = Session::Start(contract, token);
  if (!session.ok()) _exit(1);
  if (leaves) (*session)->Leave();
  char last = Code(StopReason::kNone);
  if (write(report, &last, 1) != 1) _exit(1);
  while (true) {
    const char now = Code(token.reason());
    if (now != last && write(report, &now, 1) != 1) _exit(1);
    last = now;
    sched_yield();
  }
}

// A worker process and, when it has one, its agent's end of the session.
class Worker {
 public:
  // `terminal`: the path of its controlling one; "" = as the test's.
  // `leaves`: its session, at once.
  explicit Worker(bool has_agent, const std::string& terminal = "", bool leaves = false) {
    alarm(kPatienceSeconds);
    // A relative name: the directory's own may be longer than a socket's address.
    REQUIRE(chdir(directory_.path().c_str()) == 0);
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    std::strcpy(address.sun_path, kSocketName);
    const UniqueFd listener(socket(AF_UNIX, SOCK_STREAM, 0));
    REQUIRE(bind(listener.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
    REQUIRE(listen(listener.get(), 1) == 0);
    int ends[2];
    REQUIRE(pipe(ends) == 0);
    report_.Reset(ends[0]);
    const UniqueFd report_end(ends[1]);
    Contract contract;
    contract.local_rank = 2;
    contract.epoch = Epoch(7);
    if (has_agent) contract.session_path = kSocketName;
    process_ = fork();
    REQUIRE(process_ >= 0);
    if (process_ == 0) BeWorker(contract, report_end.get(), terminal, leaves);
    if (has_agent) agent_.Reset(accept(listener.get(), nullptr, nullptr));
    CHECK(NextReport() == Code(StopReason::kNone));
  }

  ~Worker() {
    if (process_ > 0) {
      kill(process_, SIGKILL);
      waitpid(process_, nullptr, 0);
    }
    alarm(0);
    CHECK(chdir("/") == 0);
  }

  std::string ReadLine() {
    std::string line;
    char c = 0;
    while (read(agent_.get(), &c, 1) == 1 && c != '\n') line += c;
    return line;
  }
  void Say(const std::string& text) {
    CHECK(write(agent_.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()));
  }
  void HangUp() { agent_.Reset(); }
  void Signal(int number) { CHECK(kill(process_, number) == 0); }
  // Signals, and waits until the session has taken the signal: what is said next comes after it.
  void SignalAndAwait(int number) {
    Signal(number);
    const uint64_t bit = uint64_t{1} << (number - 1);
    CHECK(PollUntil([&] { return (PendingSignals() & bit) == 0; }, absl::Seconds(20)));
  }
  bool HasEnded() const {
    siginfo_t info = {};
    return waitid(P_PID, process_, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid != 0;
  }

  // The reason that the worker's token has next; 0 when it ended instead.
  char NextReport() {
    char reason = 0;
    return read(report_.get(), &reason, 1) == 1 ? reason : 0;
  }
  // -1 unless it ended by itself.
  int ExitCode() {
    int status = 0;
    waitpid(process_, &status, 0);
    process_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

 private:
  // The pending signals of the whole process, a bit each.
  uint64_t PendingSignals() const {
    const auto status = ReadFile(absl::StrCat("/proc/", process_, "/status"));
    REQUIRE_OK(status);
    const size_t at = status->find("ShdPnd:\t");
    REQUIRE(at != std::string::npos);
    return std::stoull(status->substr(at + 8), nullptr, 16);
  }

  TempDir directory_;
  UniqueFd report_;
  UniqueFd agent_;
  pid_t process_ = -1;
};

TEST_CASE("a worker greets its agent with its local rank and epoch") {
  Worker worker(/*has_agent=*/true);
  CHECK(worker.ReadLine() == "hello 2 7");
}

TEST_CASE("a worker that leaves says so, and outlives the end of its agent's socket") {
  Worker worker(/*has_agent=*/true, "", /*leaves=*/true);
  CHECK(worker.ReadLine() == "hello 2 7");
  CHECK(worker.ReadLine() == "leave");
  worker.HangUp();
  CHECK_FALSE(worker.HasEnded());
}

TEST_CASE("abort ends the worker at once with 75") {
  Worker worker(/*has_agent=*/true);
  worker.Say("abort node1 is gone\n");
  CHECK(worker.ExitCode() == 75);
}

TEST_CASE("an agent that closes its end ends the worker with 75") {
  Worker worker(/*has_agent=*/true);
  worker.HangUp();
  CHECK(worker.ExitCode() == 75);
}

TEST_CASE("an agent that never ends its line ends the worker with 75") {
  Worker worker(/*has_agent=*/true);
  worker.Say(std::string(5000, 'x'));
  CHECK(worker.ExitCode() == 75);
}

TEST_CASE("checkpoint asks for a stop, also in pieces and behind words nobody knows") {
  Worker worker(/*has_agent=*/true);
  worker.Say("weather fine\ncheck");
  worker.Say("point a node joins\n");
  CHECK(worker.NextReport() == Code(StopReason::kMembershipChanged));
}

TEST_CASE("a stop signal of any kind is one request, however many senders repeat it") {
  const int first = GENERATE(SIGTERM, SIGINT, SIGHUP, SIGQUIT);
  Worker worker(/*has_agent=*/true);
  worker.SignalAndAwait(first);
  CHECK(worker.NextReport() == Code(StopReason::kTerminated));
  for (const int number : {SIGTERM, SIGINT, SIGHUP, SIGQUIT}) worker.SignalAndAwait(number);
  worker.Say("checkpoint a node joins\n");
  CHECK(worker.NextReport() == Code(StopReason::kMembershipChanged));
}

TEST_CASE("checkpoint outranks the TERM before it, and a TERM after it changes nothing") {
  Worker worker(/*has_agent=*/true);
  worker.Signal(SIGTERM);
  CHECK(worker.NextReport() == Code(StopReason::kTerminated));
  worker.Say("checkpoint a node joins\n");
  CHECK(worker.NextReport() == Code(StopReason::kMembershipChanged));
  worker.SignalAndAwait(SIGTERM);
  worker.Say("abort node1 is gone\n");
  CHECK(worker.ExitCode() == 75);
}

TEST_CASE("a second Ctrl-C, clearly later, ends a worker on a terminal at once with 130") {
  const UniqueFd keyboard(posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC));
  REQUIRE(keyboard.valid());
  REQUIRE(grantpt(keyboard.get()) == 0);
  REQUIRE(unlockpt(keyboard.get()) == 0);
  Worker worker(/*has_agent=*/false, ptsname(keyboard.get()));
  const auto press = [&] { CHECK(write(keyboard.get(), "\x03", 1) == 1); };
  const MonotonicTime begin = Clock::Real().Now();
  press();
  CHECK(worker.NextReport() == Code(StopReason::kTerminated));
  CHECK(PollUntil(
      [&] {
        press();
        return worker.HasEnded();
      },
      absl::Seconds(20)));
  CHECK(Clock::Real().Now() - begin >= StopRequest::kClearlyLater);
  CHECK(worker.ExitCode() == 130);
}

TEST_CASE("without its agent's socket a session does not start") {
  const TempDir directory;
  REQUIRE(chdir(directory.path().c_str()) == 0);
  Contract contract;
  contract.session_path = kSocketName;
  StopToken token;
  CHECK_STATUS(Session::Start(contract, token), absl::StatusCode::kUnavailable, kSocketName);
  contract.session_path = std::string(200, 'a');
  CHECK_STATUS(Session::Start(contract, token), absl::StatusCode::kInvalidArgument, "too long");
  CHECK(chdir("/") == 0);
}

// Sends itself SIGTERM as a worker without an agent, in a process of its own. Returns its exit
// code: 1 when it was still there after ten seconds.
int ExitCodeAfterTerm(const std::function<void(StopToken&)>& before) {
  const pid_t pid = fork();
  if (pid == 0) {
    BlockStopSignals();
    StopToken token;
    const auto session = Session::Start(Contract(), token);
    if (!session.ok()) _exit(2);
    before(token);
    kill(getpid(), SIGTERM);
    const MonotonicTime deadline = Clock::Real().Now() + absl::Seconds(10);
    while (token.reason() == StopReason::kNone && Clock::Real().Now() < deadline) sched_yield();
    _exit(token.reason() == StopReason::kTerminated ? 3 : 1);
  }
  int status = 0;
  REQUIRE(waitpid(pid, &status, 0) == pid);
  REQUIRE(WIFEXITED(status));
  return WEXITSTATUS(status);
}

TEST_CASE("a stop during start-up ends the process at once, since nobody looks at the token") {
  CHECK(ExitCodeAfterTerm([](StopToken&) {}) == 128 + SIGTERM);
}

TEST_CASE("a stop of a program that watches its token is left to the program") {
  CHECK(ExitCodeAfterTerm([](StopToken& token) { token.Watch(); }) == 3);
}

}  // namespace
}  // namespace convene::worker

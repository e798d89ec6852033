#include "agent/agent.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdio>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tools/base/clock.h"
#include "tools/base/files.h"
#include "tools/base/testing/poll.h"
#include "tools/base/testing/status_testing.h"
#include "tools/base/testing/temp_dir.h"
#include "tools/base/thread.h"
#include "tools/base/unique_fd.h"

namespace convene::agent {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(30);

UniqueFd OpenPid(pid_t pid) { return UniqueFd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0))); }

// True when the process has ended, now or within kPatience.
bool EndsSoon(const UniqueFd& pidfd) {
  pollfd waiting = {pidfd.get(), POLLIN, 0};
  return !pidfd.valid() || poll(&waiting, 1, absl::ToInt64Milliseconds(kPatience)) == 1;
}

int FreePort() {
  UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  REQUIRE(bind(socket.get(), reinterpret_cast<sockaddr*>(&address), length) == 0);
  REQUIRE(getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &length) == 0);
  return ntohs(address.sin_port);
}

// RunAgent in a process of its own: it owns its main thread's signals, and gRPC does not survive a
// fork.
class AgentProcess {
 public:
  AgentProcess(const AgentOptions& options, const std::string& directory, const std::string& name)
      : prefix_(directory + "/" + name) {
    pid_ = fork();
    REQUIRE(pid_ >= 0);
    if (pid_ == 0) {
      Redirect(prefix_ + ".out", STDOUT_FILENO);
      Redirect(prefix_ + ".err", STDERR_FILENO);
      const Result result = RunAgent(options);
      WriteFileAtomic(prefix_ + ".explanation", result.explanation).IgnoreError();
      _exit(result.exit_code);
    }
    pidfd_ = OpenPid(pid_);
  }
  ~AgentProcess() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
  }

  pid_t pid() const { return pid_; }
  void Signal(int signal) { kill(pid_, signal); }
  // Its exit code; 1000 + signal when it was killed.
  int Wait() {
    INFO(Read(".out") << Read(".err"));
    REQUIRE(EndsSoon(pidfd_));
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
  }
  std::string Out() const { return Read(".out"); }
  std::string Err() const { return Read(".err"); }
  std::string Explanation() const { return Read(".explanation"); }

 private:
  static void Redirect(const std::string& path, int fd) {
    const UniqueFd file(open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
    dup2(file.get(), fd);
  }
  std::string Read(const std::string& suffix) const {
    const auto content = ReadFile(prefix_ + suffix);
    return content.ok() ? *content : "";
  }

  const std::string prefix_;
  pid_t pid_ = -1;
  UniqueFd pidfd_;
};

// While it lives, that process does not die of SIGKILL, like one that hangs in the kernel on a
// device: it stops on its way out, and its tracer, which we are, never lets it go on.
class Undying {
 public:
  explicit Undying(pid_t pid) : pid_(pid) {
    REQUIRE(ptrace(PTRACE_SEIZE, pid, nullptr, PTRACE_O_TRACEEXIT) == 0);
  }
  ~Undying() {
    // Also lets a live one go. A dead one's stop must have been seen first.
    waitpid(pid_, nullptr, __WALL | WNOHANG);
    ptrace(PTRACE_DETACH, pid_, nullptr, nullptr);
    kill(pid_, SIGKILL);
  }
  Undying(const Undying&) = delete;
  Undying& operator=(const Undying&) = delete;

 private:
  const pid_t pid_;
};

// -1 when it has none.
pid_t FindGuardianOf(pid_t agent) {
  const auto names = ListDirectory("/proc");
  REQUIRE_OK(names);
  for (const std::string& name : *names) {
    int pid = 0;
    if (!absl::SimpleAtoi(name, &pid)) continue;
    const auto stat = ReadFile(absl::StrCat("/proc/", pid, "/stat"));
    if (!stat.ok() || stat->find("(convene-guard) ") == std::string::npos) continue;
    const std::vector<std::string> fields =
        absl::StrSplit(stat->substr(stat->rfind(") ") + 2), ' ');
    if (fields[1] == absl::StrCat(agent)) return pid;
  }
  return -1;
}

// Under load a guardian has its name only a moment after its birth.
pid_t GuardianOf(pid_t agent) {
  REQUIRE(testing::PollUntil([&] { return FindGuardianOf(agent) > 0; }, kPatience));
  return FindGuardianOf(agent);
}

struct Fixture {
  AgentOptions Standalone(const std::string& script, int workers) {
    AgentOptions options;
    options.command = {"sh", "-c", script};
    options.hello.job_id = "job";
    options.hello.host = "node0";
    options.hello.local_world_size = workers;
    options.endpoint = "localhost:0";
    options.may_host = true;
    options.store_host = "127.0.0.1";
    options.extra_environment = {{"TEST_DIR", directory.path()}};
    return options;
  }
  AgentProcess Start(const AgentOptions& options, const std::string& name = "agent") {
    return AgentProcess(options, directory.path(), name);
  }
  // Waits until the file has that many lines.
  std::vector<std::string> WaitForLines(const std::string& name, size_t count) {
    std::vector<std::string> lines;
    REQUIRE(testing::PollUntil(
        [&] {
          const auto content = ReadFile(directory.File(name));
          lines = absl::StrSplit(content.ok() ? *content : "", '\n', absl::SkipEmpty());
          return lines.size() >= count;
        },
        kPatience));
    return lines;
  }
  // The processes whose numbers are the last words of the file's lines.
  std::vector<UniqueFd> WaitForProcesses(const std::string& name, size_t count) {
    std::vector<UniqueFd> processes;
    for (const std::string& line : WaitForLines(name, count)) {
      pids.push_back(0);
      REQUIRE(absl::SimpleAtoi(line.substr(line.rfind(' ') + 1), &pids.back()));
      processes.push_back(OpenPid(pids.back()));
      REQUIRE(processes.back().valid());
    }
    return processes;
  }

  testing::TempDir directory;
  std::vector<int> pids;
};

TEST_CASE_METHOD(Fixture, "two workers that do nothing succeed") {
  AgentOptions options = Standalone("", 2);
  options.command = {"true"};
  const MonotonicTime begin = Clock::Real().Now();
  AgentProcess agent = Start(options);
  CHECK(agent.Wait() == 0);
  std::printf("true x 2: %.1f ms\n", absl::ToDoubleMilliseconds(Clock::Real().Now() - begin));
  CHECK(agent.Explanation().empty());
}

TEST_CASE_METHOD(Fixture,
                 "what only this node's workers are told of listens on the loopback alone") {
  // Rows of listening sockets: "<address>:<port> <peer> 0A".
  AgentProcess agent = Start(Standalone(
      "port=$(printf ':%04X ' $MASTER_PORT); "
      "cat /proc/net/tcp /proc/net/tcp6 | grep \"$port.* 0A \" > $TEST_DIR/listeners; "
      "grep -q 0100007F$port $TEST_DIR/listeners && [ $(wc -l < $TEST_DIR/listeners) = 1 ]",
      1));
  CHECK(agent.Wait() == 0);
}

TEST_CASE_METHOD(
    Fixture, "a host behind an address that is not its own tells workers where others reach it") {
  AgentOptions options = Standalone("[ $MASTER_ADDR = 127.0.0.2 ]", 1);
  options.store_host = "127.0.0.2";  // found on the way to the endpoint
  options.store_host_may_change = true;
  AgentProcess agent = Start(options);
  CHECK(agent.Wait() == 0);
}

TEST_CASE_METHOD(Fixture, "an agent without a thread for its store says that the node is unfit") {
  const ScopedThreadFault fault("store0");
  AgentProcess agent = Start(Standalone("", 1));
  CHECK(agent.Wait() == 71);
  CHECK_THAT(agent.Explanation(), Catch::Contains("cannot start the thread \"store0\""));
}

TEST_CASE_METHOD(Fixture, "an agent without a thread to dial with tries again, then says why") {
  const ScopedThreadFault fault("dial");
  AgentOptions options = Standalone("", 1);
  options.connect_timeout = absl::Milliseconds(300);
  AgentProcess agent = Start(options);
  CHECK(agent.Wait() == 69);
  CHECK_THAT(agent.Explanation(), Catch::Contains("cannot start the thread \"dial\""));
}

TEST_CASE_METHOD(Fixture, "workers that fail once run again, and know it") {
  AgentOptions options = Standalone(
      "echo count=$TORCHELASTIC_RESTART_COUNT rank=$RANK of $WORLD_SIZE epoch=$CONVENE_EPOCH; "
      "[ $TORCHELASTIC_RESTART_COUNT = 1 ] || exit 3",
      2);
  options.hello.max_restarts = 1;
  options.log.directory = directory.File("logs");
  options.log.tee.others = Streams::kBoth;
  AgentProcess agent = Start(options);
  CHECK(agent.Wait() == 0);
  CHECK_THAT(agent.Out(), Catch::Contains("[0] count=1 rank=0 of 2 epoch=2\n") &&
                              Catch::Contains("[1] count=1 rank=1 of 2 epoch=2\n"));
  const auto run = ListDirectory(options.log.directory);
  REQUIRE_OK(run);
  REQUIRE(run->size() == 1);
  CHECK(run->front().substr(0, 4) == "job_");
  const auto log = ReadFile(options.log.directory + "/" + run->front() + "/attempt_1/1/stdout.log");
  REQUIRE_OK(log);
  CHECK(*log == "count=1 rank=1 of 2 epoch=2\n");
}

TEST_CASE_METHOD(Fixture,
                 "when the budget is spent, the person is told who failed first and what it said") {
  AgentProcess agent = Start(Standalone(
      "[ $RANK = 0 ] && exec sleep 600; echo starting; echo disk on fire >&2; exit 3", 2));
  CHECK(agent.Wait() == 1);
  CHECK_THAT(agent.Explanation(), Catch::Contains("rank 1 (local rank 1, pid ") &&
                                      Catch::Contains("on node0: exit code 3") &&
                                      Catch::Contains("disk on fire"));
}

TEST_CASE_METHOD(Fixture, "a worker that ignores TERM is killed after the grace") {
  AgentOptions options = Standalone(
      "trap '' TERM; echo $$ >> $TEST_DIR/pids; while [ $(wc -l < $TEST_DIR/pids) -lt 2 ]; do "
      "sleep 0.01; done; "
      "[ $RANK = 0 ] && exit 3; while :; do sleep 600; done",
      2);
  options.stop_graces.abort = absl::Milliseconds(300);
  const MonotonicTime begin = Clock::Real().Now();
  AgentProcess agent = Start(options);
  CHECK(agent.Wait() == 1);
  CHECK(Clock::Real().Now() - begin > absl::Milliseconds(300));
  CHECK_THAT(agent.Out() + agent.Err(), Catch::Contains("killing the workers that are left"));
}

TEST_CASE_METHOD(Fixture,
                 "the grace of a signal is its own, and is not shared by the workers in turn") {
  // One after the other they would need 4 s.
  AgentOptions options = Standalone(
      "trap 'sleep 1; echo saved; exit 0' TERM; echo $$ >> $TEST_DIR/pids; while :; do sleep 0.02; "
      "done",
      4);
  options.stop_graces = {absl::Seconds(3), absl::Milliseconds(1), absl::Milliseconds(1)};
  AgentProcess agent = Start(options);
  WaitForProcesses("pids", 4);
  agent.Signal(SIGTERM);
  CHECK(agent.Wait() == 128 + SIGTERM);
  for (int rank = 0; rank < 4; ++rank) {
    CHECK_THAT(agent.Out(), Catch::Contains(absl::StrCat("[", rank, "] saved\n")));
  }
}

TEST_CASE_METHOD(Fixture, "after the grace of a signal workers are killed") {
  AgentOptions options =
      Standalone("trap '' TERM; echo $$ >> $TEST_DIR/pids; while :; do sleep 600; done", 1);
  options.stop_graces.signal = absl::Milliseconds(200);
  AgentProcess agent = Start(options);
  WaitForProcesses("pids", 1);
  agent.Signal(SIGTERM);
  CHECK(agent.Wait() == 128 + SIGTERM);
  CHECK_THAT(agent.Out() + agent.Err(), Catch::Contains("the grace is over"));
}

TEST_CASE_METHOD(Fixture, "a signal's echoes hurry nobody, whoever sends them and how often") {
  // Longer than a person waits between two Ctrl-C.
  AgentOptions options = Standalone(
      "trap 'sleep 1.5; echo saved; exit 0' TERM INT; echo $$ >> $TEST_DIR/pids; while :; do sleep "
      "0.02; done",
      2);
  AgentProcess agent = Start(options);
  const std::vector<UniqueFd> workers = WaitForProcesses("pids", 2);
  do {
    agent.Signal(SIGTERM);
    agent.Signal(SIGINT);
  } while (!testing::PollUntil([&] { return absl::StrContains(agent.Out(), "saved"); },
                               absl::Milliseconds(15)));
  CHECK(agent.Wait() > 128);
  CHECK_THAT(agent.Out(), Catch::Contains("[0] saved\n") && Catch::Contains("[1] saved\n"));
  CHECK_THAT(agent.Out() + agent.Err(), !Catch::Contains("killing the workers"));
}

TEST_CASE_METHOD(Fixture,
                 "a worker that dies of a scheduler's TERM before the agent has got its own has "
                 "not failed") {
  AgentOptions options = Standalone("echo $$ >> $TEST_DIR/pids; exec sleep 600", 2);
  options.echo_patience = absl::Seconds(20);
  AgentProcess agent = Start(options);
  const std::vector<UniqueFd> workers = WaitForProcesses("pids", 2);
  kill(pids[0], SIGTERM);
  REQUIRE(EndsSoon(workers[0]));
  const MonotonicTime signalled = Clock::Real().Now();
  agent.Signal(SIGTERM);
  CHECK(agent.Wait() == 128 + SIGTERM);
  CHECK(Clock::Real().Now() - signalled < options.echo_patience);
  CHECK_THAT(agent.Out() + agent.Err(), !Catch::Contains("failed"));
}

TEST_CASE_METHOD(
    Fixture, "a worker's death by a TERM is held for as long as the agent's own may come last") {
  AgentOptions options = Standalone("echo $$ >> $TEST_DIR/pids; exec sleep 600", 1);
  options.echo_patience = absl::Milliseconds(700);
  AgentProcess agent = Start(options);
  const std::vector<UniqueFd> workers = WaitForProcesses("pids", 1);
  const MonotonicTime killed = Clock::Real().Now();
  kill(pids[0], SIGTERM);
  CHECK(agent.Wait() == 1);
  CHECK(Clock::Real().Now() - killed >= options.echo_patience);
}

TEST_CASE_METHOD(Fixture,
                 "a worker that dies of a TERM that nobody sends to the agent has failed") {
  const bool by_shell = GENERATE(false, true);
  AgentProcess agent = Start(Standalone(by_shell ? "[ $RANK = 0 ] && exec sleep 600; exit 143"
                                                 : "[ $RANK = 0 ] && exec sleep 600; kill -TERM $$",
                                        2));
  CHECK(agent.Wait() == 1);
  CHECK_THAT(agent.Explanation(),
             Catch::Contains("rank 1 (local rank 1, pid ") && Catch::Contains("SIGTERM"));
}

TEST_CASE_METHOD(Fixture, "a change of members has a grace of its own") {
  AgentOptions options = Standalone(
      "[ $WORLD_SIZE = 2 ] && exit 0; trap '' TERM; echo $$ >> $TEST_DIR/pids; while :; do sleep "
      "600; done",
      1);
  options.endpoint = absl::StrCat("127.0.0.1:", FreePort());
  options.hello.nodes_min = 1;
  options.hello.nodes_max = 2;
  options.hello.last_call = absl::Milliseconds(10);
  options.stop_graces = {absl::Seconds(600), absl::Milliseconds(200), absl::Seconds(600)};
  AgentProcess first = Start(options, "node0");
  WaitForProcesses("pids", 1);
  options.hello.host = "node1";
  AgentProcess second = Start(options, "node1");
  CHECK(first.Wait() == 0);
  CHECK(second.Wait() == 0);
  CHECK_THAT(first.Out() + first.Err(), Catch::Contains("the grace is over"));
}

TEST_CASE_METHOD(Fixture, "a worker that hangs in the kernel does not hang the agent: 71") {
  AgentOptions options = Standalone("echo $$ >> $TEST_DIR/pids; exec sleep 600", 2);
  options.stop_graces.signal = absl::Milliseconds(100);
  options.kill_patience = absl::Milliseconds(300);
  AgentProcess agent = Start(options);
  const std::vector<UniqueFd> workers = WaitForProcesses("pids", 2);
  const Undying stuck(pids[0]);
  const UniqueFd guardian = OpenPid(GuardianOf(agent.pid()));
  REQUIRE(guardian.valid());
  agent.Signal(SIGTERM);
  CHECK(agent.Wait() == 71);
  CHECK_THAT(agent.Explanation(), Catch::Contains("still there 300ms after SIGKILL") &&
                                      Catch::Contains("Drain this node"));
  CHECK(EndsSoon(workers[1]));
  CHECK(EndsSoon(guardian));
}

TEST_CASE_METHOD(Fixture, "nor its guardian, when the agent was killed") {
  AgentProcess agent = Start(Standalone("echo $$ >> $TEST_DIR/pids; exec sleep 600", 2));
  const std::vector<UniqueFd> workers = WaitForProcesses("pids", 2);
  const Undying stuck(pids[0]);
  const UniqueFd guardian = OpenPid(GuardianOf(agent.pid()));
  REQUIRE(guardian.valid());
  agent.Signal(SIGKILL);
  CHECK(agent.Wait() == 1000 + SIGKILL);
  CHECK(EndsSoon(workers[1]));
  CHECK(EndsSoon(guardian));
}

TEST_CASE_METHOD(Fixture, "a node whose worker hangs in the kernel leaves, and the others go on") {
  // On a loaded machine the last call may end before the second node has joined: then the first
  // node is alone for an epoch, and waits.
  AgentOptions options = Standalone(
      "if [ $WORLD_SIZE = 2 ]; then echo $$ >> $TEST_DIR/pids$NODE; "
      "elif [ -s $TEST_DIR/pids1 ]; then exit 0; fi; exec sleep 600",
      1);
  options.endpoint = absl::StrCat("127.0.0.1:", FreePort());
  options.hello.nodes_min = 1;
  options.hello.nodes_max = options.hello.nodes_expected = 2;
  options.hello.last_call = absl::Milliseconds(10);
  options.hello.max_restarts = 3;
  // Not by rank: the node that joins first gets the lower one, and that may be either.
  options.extra_environment["NODE"] = "0";
  AgentProcess first = Start(options, "node0");
  options.hello.host = "node1";
  options.extra_environment["NODE"] = "1";
  options.stop_graces.abort = absl::Milliseconds(100);
  options.kill_patience = absl::Milliseconds(500);
  AgentProcess second = Start(options, "node1");
  const std::vector<UniqueFd> worker0 = WaitForProcesses("pids0", 1);
  const std::vector<UniqueFd> worker1 = WaitForProcesses("pids1", 1);
  const Undying stuck(pids[1]);
  kill(pids[0], SIGKILL);
  CHECK(second.Wait() == 71);
  CHECK(first.Wait() == 0);
}

TEST_CASE_METHOD(Fixture, "a guardian that was killed is replaced") {
  AgentProcess agent = Start(Standalone("echo $$ >> $TEST_DIR/pids; exec sleep 600", 1));
  const std::vector<UniqueFd> workers = WaitForProcesses("pids", 1);
  const pid_t guardian = GuardianOf(agent.pid());
  kill(guardian, SIGKILL);
  REQUIRE(testing::PollUntil(
      [&] {
        const pid_t now = FindGuardianOf(agent.pid());
        return now > 0 && now != guardian;
      },
      kPatience));
  agent.Signal(SIGTERM);
  CHECK(agent.Wait() == 128 + SIGTERM);
}

TEST_CASE_METHOD(Fixture, "a killed agent leaves no worker behind") {
  AgentProcess agent = Start(Standalone("echo $$ >> $TEST_DIR/pids; exec sleep 600", 2));
  const std::vector<UniqueFd> workers = WaitForProcesses("pids", 2);
  agent.Signal(SIGKILL);
  CHECK(agent.Wait() == 1000 + SIGKILL);
  for (const UniqueFd& worker : workers) CHECK(EndsSoon(worker));
}

TEST_CASE_METHOD(Fixture, "a signal stops workers and what they started, in order") {
  // The grandchild tells its number itself: between fork and exec it still has the shell's trap,
  // which would eat the signal.
  AgentProcess agent = Start(Standalone(
      "trap 'echo asked; exit 0' TERM; sh -c 'echo $$ >> $TEST_DIR/pids; exec sleep 600' & "
      "while :; do sleep 0.01; done",
      1));
  const std::vector<UniqueFd> grandchildren = WaitForProcesses("pids", 1);
  agent.Signal(SIGTERM);
  CHECK(agent.Wait() == 128 + SIGTERM);
  CHECK_THAT(agent.Out(), Catch::Contains("[0] asked\n"));
  CHECK_THAT(agent.Explanation(), Catch::Contains("SIGTERM"));
  for (const UniqueFd& grandchild : grandchildren) CHECK(EndsSoon(grandchild));
}

TEST_CASE_METHOD(Fixture, "a program that is not there is a usage error before anything starts") {
  AgentOptions options = Standalone("", 2);
  options.command = {"no-such-trainer"};
  AgentProcess agent = Start(options);
  CHECK(agent.Wait() == 64);
  CHECK_THAT(agent.Explanation(), Catch::Contains("no-such-trainer was not found in PATH"));
}

TEST_CASE_METHOD(Fixture, "a rendezvous that nobody hosts is 69 after connect_timeout") {
  AgentOptions options = Standalone("", 1);
  options.endpoint = absl::StrCat("127.0.0.1:", FreePort());
  options.may_host = false;
  options.connect_timeout = absl::Milliseconds(200);
  AgentProcess agent = Start(options);
  CHECK(agent.Wait() == 69);
  CHECK_THAT(agent.Explanation(),
             Catch::Contains(options.endpoint + " could not be reached within 200ms"));
}

TEST_CASE_METHOD(
    Fixture, "10,000 lines at the end of two workers all come out, in order and with their rank") {
  AgentProcess agent =
      Start(Standalone("i=0; while [ $i -lt 10000 ]; do echo line $i; i=$((i+1)); done", 2));
  CHECK(agent.Wait() == 0);
  const std::vector<std::string> lines = absl::StrSplit(agent.Out(), '\n', absl::SkipEmpty());
  int next[2] = {0, 0};
  for (const std::string& line : lines) {
    for (int rank = 0; rank < 2; ++rank) {
      if (line == absl::StrCat("[", rank, "] line ", next[rank])) {
        ++next[rank];
        break;
      }
    }
  }
  CHECK(next[0] == 10000);
  CHECK(next[1] == 10000);
}

TEST_CASE_METHOD(Fixture,
                 "a worker in session hears abort, and one that saves may end with 75 for free") {
  AgentOptions options = Standalone(
      "exec perl -MIO::Socket::UNIX -e '"
      "$| = 1; $SIG{TERM} = \"IGNORE\";"
      "exit 0 if $ENV{TORCHELASTIC_RESTART_COUNT} == 1;"
      "my $s = IO::Socket::UNIX->new($ENV{CONVENE_SESSION}) or die;"
      "print $s \"hello $ENV{LOCAL_RANK} $ENV{CONVENE_EPOCH}\\n\"; $s->flush;"
      "if ($ENV{RANK} == 1) { sleep 0.2; select undef, undef, undef, 0.3; exit 3; }"
      "print scalar <$s>; exit 75;'",
      2);
  options.hello.max_restarts = 1;
  AgentProcess agent = Start(options);
  CHECK(agent.Wait() == 0);
  CHECK_THAT(agent.Out(), Catch::Contains("[0] abort rank 1: exit code 3\n"));
}

TEST_CASE_METHOD(Fixture,
                 "bad usage, said by a worker in session, ends the job without a restart") {
  AgentOptions options = Standalone(
      "exec perl -MIO::Socket::UNIX -e '"
      "my $s = IO::Socket::UNIX->new($ENV{CONVENE_SESSION}) or die;"
      "print $s \"hello $ENV{LOCAL_RANK} $ENV{CONVENE_EPOCH}\\n\"; $s->flush;"
      "print STDERR \"--stepz is no flag\\n\"; exit 64;'",
      2);
  options.hello.max_restarts = 3;
  AgentProcess agent = Start(options);
  CHECK(agent.Wait() == 64);
  CHECK_THAT(agent.Explanation(), Catch::Contains("exit code 64 (bad usage), which a restart would "
                                                  "not mend") &&
                                      Catch::Contains("--stepz is no flag"));
}

TEST_CASE_METHOD(Fixture,
                 "two nodes: one killed worker stops all, all start again, both commands succeed") {
  AgentOptions options = Standalone(
      "[ $TORCHELASTIC_RESTART_COUNT = 1 ] && exit 0; echo $RANK $$ >> $TEST_DIR/pids; exec sleep "
      "600",
      2);
  options.endpoint = absl::StrCat("127.0.0.1:", FreePort());
  options.hello.nodes_min = options.hello.nodes_max = 2;
  options.hello.max_restarts = 1;
  AgentProcess first = Start(options, "node0");
  options.hello.host = "node1";
  AgentProcess second = Start(options, "node1");
  const std::vector<UniqueFd> workers = WaitForProcesses("pids", 4);
  const MonotonicTime begin = Clock::Real().Now();
  kill(pids[3], SIGKILL);
  for (const UniqueFd& worker : workers) CHECK(EndsSoon(worker));
  const absl::Duration stopped = Clock::Real().Now() - begin;
  CHECK(first.Wait() == 0);
  CHECK(second.Wait() == 0);
  std::printf(
      "kill of one worker -> all 4 workers of 2 nodes stopped: %.1f ms, -> both commands over: "
      "%.1f ms\n",
      absl::ToDoubleMilliseconds(stopped), absl::ToDoubleMilliseconds(Clock::Real().Now() - begin));
  CHECK_THAT(first.Err() + second.Err() + first.Out() + second.Out(),
             Catch::Contains("killed by SIGKILL ("));
}

}  // namespace
}  // namespace convene::agent

#include "agent/workers/worker_group.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <map>
#include <set>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "agent/workers/health_check.h"
#include "tools/base/files.h"
#include "tools/base/testing/status_testing.h"
#include "tools/base/testing/temp_dir.h"

namespace convene::agent {
namespace {

// Workers whose console is a file.
struct Fixture {
  explicit Fixture(const LeftoverOptions& leftovers = {})
      : output(open(directory.File("out").c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600)) {
    WorkerGroup::Listener listener;
    listener.on_exit = [this](WorkerExited exit) { exits[exit.local_rank] = exit; };
    listener.on_gone = [this] { gone = true; };
    listener.on_say = [this](const std::string& line) { absl::StrAppend(&said, line, "\n"); };
    group = std::make_unique<WorkerGroup>(loop, console, custody, leftovers, std::move(listener));
  }
  absl::Status Start(const std::string& script, int count = 1) {
    std::vector<WorkerGroup::Worker> workers(count);
    for (int i = 0; i < count; ++i) {
      workers[i].spawn.program = "/bin/sh";
      workers[i].spawn.arguments = {"sh", "-c", script};
      workers[i].spawn.environment = {absl::StrCat("LOCAL_RANK=", i), "PATH=/usr/bin:/bin"};
      for (StreamOutput* output : {&workers[i].out, &workers[i].err}) {
        output->prefix = LinePrefix(absl::StrCat("[", i, "] "), {});
      }
      if (disk == nullptr) continue;
      workers[i].out.disk = disk.get();
      workers[i].out.file = disk->Open({absl::StrCat(log_directory, "/", i, "/stdout.log")});
    }
    return group->Start(workers);
  }
  // Until `done` is true; every wait of a test is bounded.
  void RunUntil(const std::function<bool()>& done) {
    const MonotonicTime deadline = Clock::Real().Now() + absl::Seconds(20);
    while (!done()) {
      REQUIRE(Clock::Real().Now() < deadline);
      // Some conditions come true outside the loop.
      const MonotonicTime soon = Clock::Real().Now() + absl::Milliseconds(5);
      loop.RunOnce(std::min(soon, group->next_deadline()));
      group->OnTime(Clock::Real().Now());
    }
  }
  void RunUntilGone() {
    RunUntil([this] { return gone; });
  }
  std::string Output() {
    const auto content = ReadFile(directory.File("out"));
    return content.ok() ? *content : "";
  }
  int Count(const std::string& word) {
    return static_cast<int>(std::vector<std::string>(absl::StrSplit(Output(), word)).size()) - 1;
  }
  void RunUntilOutput(const std::string& text) {
    RunUntil([&] { return Output().find(text) != std::string::npos; });
  }
  // The number after `word` in the output.
  pid_t PidAfter(const std::string& word) {
    int pid = 0;
    const std::string output = Output();
    REQUIRE(absl::SimpleAtoi(std::vector<std::string>(absl::StrSplit(
                                 output.substr(output.find(word) + word.size()), '\n'))[0],
                             &pid));
    return pid;
  }
  static bool Everyone(int) { return true; }

  testing::TempDir directory;
  std::string log_directory;  // with `disk`
  UniqueFd output;
  EventLoop loop;
  Console console{loop, output.get(), output.get(), {[] {}, [](auto, const auto&) {}}};
  Custody custody{loop, [this] { group->OnOrphanEnded(); }};
  std::unique_ptr<LogDisk> disk;  // null: no files
  std::map<int, WorkerExited> exits;
  bool gone = false;
  std::string said;
  std::unique_ptr<WorkerGroup> group;
};

// A successful worker's leftovers are asked to end at once.
struct NoGrace : Fixture {
  NoGrace() : Fixture({absl::ZeroDuration()}) {}
};

struct AsTorchrun : Fixture {
  AsTorchrun() : Fixture({absl::Seconds(20), /*left_alone=*/true}) {}
};

// Dead, or dead and not yet reaped by init.
bool IsDead(pid_t pid) {
  const auto stat = ReadFile(absl::StrCat("/proc/", pid, "/stat"));
  return !stat.ok() || stat->find(") Z ") != std::string::npos;
}

// Returns when `pid`, a descendant, is gone: the custody of a later test must not find it.
void End(pid_t pid) {
  kill(pid, SIGKILL);
  waitpid(pid, nullptr, 0);
}

TEST_CASE_METHOD(Fixture, "codes and signals are told apart, and lines carry their rank") {
  REQUIRE_OK(
      Start("echo out; echo err >&2; if [ $LOCAL_RANK = 0 ]; then exit 3; fi; kill -9 $$", 2));
  RunUntilGone();
  CHECK(exits[0].status.exit_code == 3);
  CHECK(exits[0].status.signal == 0);
  CHECK(exits[1].status.signal == SIGKILL);
  CHECK_THAT(Output(), Catch::Contains("[0] out\n") && Catch::Contains("[0] err\n") &&
                           Catch::Contains("[1] out\n") && Catch::Contains("[1] err\n"));
}

TEST_CASE("a program that cannot be started leaves no number for the guardian to act on") {
  std::atomic<pid_t> slot{0};
  SpawnRequest request;
  request.program = "/no/such/program";
  request.arguments = {"program"};
  request.stdout_fd = request.stderr_fd = STDERR_FILENO;
  request.pid_slot = &slot;
  CHECK_STATUS(Spawn(request), absl::StatusCode::kNotFound, "/no/such/program");
  CHECK(slot == 0);
}

TEST_CASE("a program that is still being written is at fault, not this node") {
  const testing::TempDir directory;
  const std::string program = directory.File("program");
  REQUIRE_OK(WriteFileAtomic(program, "#!/bin/sh\n"));
  REQUIRE(chmod(program.c_str(), 0755) == 0);
  const UniqueFd writer(open(program.c_str(), O_WRONLY | O_CLOEXEC));
  SpawnRequest request;
  request.program = program;
  request.arguments = {"program"};
  request.stdout_fd = request.stderr_fd = STDERR_FILENO;
  CHECK_STATUS(Spawn(request), absl::StatusCode::kInvalidArgument, "fuser -v " + program);
}

TEST_CASE_METHOD(Fixture, "nothing of 10,000 lines at the end is lost, and the last 20 are kept") {
  log_directory = directory.File("logs");
  auto started = LogDisk::Start(loop, {[this] { group->OnDiskRelief(); }, {}});
  REQUIRE_OK(started);
  disk = *std::move(started);
  REQUIRE_OK(
      Start("i=0; while [ $i -lt 10000 ]; do echo line $i; i=$((i+1)); done; printf 'no end'"));
  RunUntilGone();
  std::string expected;
  std::string expected_log;
  for (int i = 0; i < 10000; ++i) {
    absl::StrAppend(&expected, "[0] line ", i, "\n");
    absl::StrAppend(&expected_log, "line ", i, "\n");
  }
  CHECK(Output() == expected + "[0] no end\n");
  CHECK(disk->Finish(absl::Seconds(20)));
  const auto log = ReadFile(directory.File("logs/0/stdout.log"));
  REQUIRE_OK(log);
  CHECK(*log == expected_log + "no end");
  REQUIRE(exits[0].last_log_lines.size() == 20);
  CHECK(exits[0].last_log_lines.front() == "line 9981");
  CHECK(exits[0].last_log_lines.back() == "no end");
}

TEST_CASE_METHOD(Fixture, "long lines are cut in the last lines only") {
  REQUIRE_OK(Start("head -c 3000 /dev/zero | tr '\\0' x; echo"));
  RunUntilGone();
  CHECK(Output() == "[0] " + std::string(3000, 'x') + "\n");
  REQUIRE(exits[0].last_log_lines.size() == 1);
  CHECK(exits[0].last_log_lines[0].size() == 500);
}

TEST_CASE_METHOD(Fixture, "a worker starts with a clean slate") {
  signal(SIGPIPE, SIG_IGN);
  UniqueFd leaked(open("/dev/null", O_RDONLY));  // Without close-on-exec.
  REQUIRE(leaked.get() > 2);
  sigset_t blocked, before;
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGTERM);
  sigprocmask(SIG_BLOCK, &blocked, &before);
  REQUIRE_OK(
      Start("grep -E '^Sig(Blk|Ign)' /proc/self/status; readlink /proc/$$/fd/0; "
            "ls -m /proc/$$/fd; cut -d' ' -f5,6 /proc/$$/stat; echo pid $$"));
  sigprocmask(SIG_SETMASK, &before, nullptr);
  RunUntilGone();
  // Signals 32 and 33 are glibc's own: who starts this test may ignore them, and nobody else can
  // tell.
  CHECK_THAT(Output(), Catch::Contains("SigBlk:\t0000000000000000") &&
                           (Catch::Contains("SigIgn:\t0000000000000000") ||
                            Catch::Contains("SigIgn:\t0000000080000000") ||
                            Catch::Contains("SigIgn:\t0000000180000000")) &&
                           Catch::Contains("[0] /dev/null\n") && Catch::Contains("[0] 0, 1, 2\n"));
  const pid_t pid = PidAfter("pid ");
  CHECK_THAT(Output(), Catch::Contains(absl::StrCat("[0] ", pid, " ", pid, "\n[0] pid ")));
}

TEST_CASE_METHOD(Fixture, "what a failed worker leaves behind gets TERM, and ends in order") {
  const std::string end = GENERATE("exit 3", "kill -9 $$", "exec sleep 600");
  const std::string helper =
      "'trap \"echo tidied; exit\" TERM; echo ready $$; while :; do sleep 0.01; done'";
  REQUIRE_OK(
      Start(absl::StrCat("sh -c ", helper, " & setsid sh -c ", helper, " & while [ $(wc -l < ",
                         directory.File("out"), ") -lt 2 ]; do sleep 0.01; done; ", end)));
  if (end == "exec sleep 600") {
    RunUntil([this] { return Count("ready") == 2; });
    kill(group->pids()[0], SIGKILL);
  }
  RunUntilGone();
  CHECK(Count("tidied") == 2);
  CHECK(said.empty());
}

TEST_CASE_METHOD(Fixture, "a helper that ignores TERM ends by itself, as Python's tracker does") {
  // It reads until the last of those that write has ended.
  REQUIRE_OK(Start(absl::StrCat("mkfifo ", directory.File("pipe"), "; sh -c 'trap \"\" TERM; cat ",
                                directory.File("pipe"), "; sleep 0.1; echo unlinked' & exec 3> ",
                                directory.File("pipe"), "; kill -9 $$")));
  RunUntilGone();
  CHECK(Count("unlinked") == 1);
}

TEST_CASE_METHOD(Fixture,
                 "what a failed worker leaves behind and ignores TERM is named and killed") {
  const MonotonicTime begin = Clock::Real().Now();
  REQUIRE_OK(
      Start(absl::StrCat("sh -c 'trap \"\" TERM; echo left $$; while :; do sleep 0.1; done' "
                         "& while ! [ -s ",
                         directory.File("out"), " ]; do sleep 0.01; done; exit 3")));
  RunUntilGone();
  CHECK(Clock::Real().Now() - begin >= LeftoverPlan::kAskedTime);
  CHECK(IsDead(PidAfter("left ")));
  CHECK_THAT(said,
             Catch::StartsWith("killing processes that the workers left behind, because they are "
                               "still there 1s after SIGTERM: ") &&
                 Catch::Contains(absl::StrCat("sh (pid ", PidAfter("left "), ")")));
}

TEST_CASE_METHOD(Fixture, "what a successful worker leaves running finishes, and its words come") {
  REQUIRE_OK(Start("sh -c 'sleep 1.3; echo uploaded' & exit 0"));
  RunUntilGone();
  CHECK(exits[0].status.exit_code == 0);
  CHECK(Output() == "[0] uploaded\n");
  CHECK_THAT(said, Catch::Contains("may go on for up to 30s (--leftover-grace): sh (pid "));
}

TEST_CASE_METHOD(Fixture, "a stop meanwhile ends it: the next epoch does not wait for the grace") {
  REQUIRE_OK(Start("sh -c 'echo left $$; exec sleep 600' & exit 0"));
  RunUntil([this] { return exits.count(0) == 1 && Count("left") == 1; });
  CHECK_FALSE(gone);
  group->Stop(SIGTERM, Everyone);
  RunUntilGone();
  CHECK(IsDead(PidAfter("left ")));
}

TEST_CASE_METHOD(NoGrace, "when the grace is over it is named, and ended in order") {
  REQUIRE_OK(
      Start(absl::StrCat("sh -c 'trap \"echo tidied; exit\" TERM; echo left $$; while :; do sleep "
                         "0.01; done' & while ! "
                         "[ -s ",
                         directory.File("out"), " ]; do sleep 0.01; done")));
  RunUntilGone();
  CHECK(exits[0].status.exit_code == 0);
  CHECK(Count("tidied") == 1);
  CHECK_THAT(
      said,
      Catch::Contains(
          "--leftover-grace is over: ending processes that the workers left behind: sh (pid "));
}

TEST_CASE("a service that the health check has started is named as that") {
  const testing::TempDir directory;
  EventLoop loop;
  Custody custody(loop, [] {});
  bool is_checked = false;
  HealthCheck check;
  check.command = absl::StrCat("S=", directory.File("started"),
                               "; setsid sh -c \"> $S; exec sleep 600\" < /dev/null > /dev/null "
                               "2>&1 & while ! [ -e $S ]; do sleep 0.01; done");
  const auto command = StartHealthCheck(
      loop, check, {"PATH=/usr/bin:/bin", "CONVENE_AGENT_TOKEN=" + custody.token()},
      [&](const absl::Status&) { is_checked = true; });
  REQUIRE_OK(command);
  const MonotonicTime deadline = Clock::Real().Now() + absl::Seconds(20);
  while (!is_checked && Clock::Real().Now() < deadline) loop.RunOnce(deadline);
  custody.NoteHealthCheck();
  const std::vector<std::string> names = custody.NamesOfLeft();
  REQUIRE(names.size() == 1);
  CHECK_THAT(names[0], Catch::EndsWith(", the health check started it)"));
  custody.KillAll();
}

TEST_CASE_METHOD(AsTorchrun, "as under torchrun it lives on, once it has closed the output") {
  REQUIRE_OK(
      Start(absl::StrCat("sh -c 'echo held; sleep 0.3; exec sleep 600 > /dev/null 2>&1' & "
                         "echo left $!")));
  RunUntilGone();
  const pid_t left = PidAfter("left ");
  CHECK_FALSE(IsDead(left));
  CHECK_THAT(said, Catch::Contains("left alone, as under torchrun"));
  CHECK_FALSE(custody.AnyLeft());
  custody.KillAll();
  CHECK_FALSE(IsDead(left));
  End(left);
}

TEST_CASE_METHOD(AsTorchrun, "nor does a later epoch end what it starts then") {
  REQUIRE_OK(Start(absl::StrCat("cd ", directory.path(),
                                "; (while ! [ -e go ]; do sleep 0.01; done; "
                                "(sleep 600 & echo $! > new; mv new pid); exec sleep 600) "
                                "> /dev/null 2>&1 & echo left $!")));
  RunUntilGone();
  REQUIRE_OK(WriteFileAtomic(directory.File("go"), ""));
  absl::StatusOr<std::string> orphan;
  RunUntil([&] { return (orphan = ReadFile(directory.File("pid"))).ok(); });
  int pid = 0;
  REQUIRE(absl::SimpleAtoi(*orphan, &pid));
  CHECK_FALSE(custody.AnyLeft());
  custody.KillAll();
  CHECK_FALSE(IsDead(pid));
  End(PidAfter("left "));
  End(pid);
}

TEST_CASE_METHOD(Fixture, "a group gets the same signal once, and another one still") {
  REQUIRE_OK(
      Start("trap 'echo term' TERM; trap 'echo int; exit' INT; echo ready; while :; do sleep 0.01; "
            "done"));
  RunUntilOutput("ready");
  group->Stop(SIGTERM, Everyone);
  RunUntilOutput("term");
  group->Stop(SIGTERM, Everyone);
  group->Stop(SIGINT, Everyone);
  RunUntilGone();
  CHECK(Count("term") == 1);
  CHECK(Count("int") == 1);
}

TEST_CASE_METHOD(NoGrace, "a grandchild in a session of its own dies with the epoch") {
  REQUIRE_OK(
      Start("setsid sh -c 'echo moved $$; exec sleep 600' & while ! [ -e /proc/$!/fd ]; do :; "
            "done; sleep 0.3"));
  RunUntil([this] { return exits.count(0) == 1; });
  const MonotonicTime ended = Clock::Real().Now();
  RunUntilGone();
  // It holds the output: ended at once, not when the patience with that is over.
  CHECK(Clock::Real().Now() - ended < absl::Milliseconds(150));
  CHECK(IsDead(PidAfter("moved ")));
}

TEST_CASE_METHOD(NoGrace, "so does one that cleared its environment and forked twice") {
  // It writes elsewhere: nothing that the group waits for tells of it.
  REQUIRE_OK(Start(absl::StrCat(
      "(env -i setsid sh -c '(trap \"\" TERM HUP; sleep 600; :) >/dev/null 2>&1 & echo $! > ",
      directory.File("pid"), "; exit' &) ; while ! [ -s ", directory.File("pid"),
      " ]; do :; done")));
  RunUntilGone();
  const auto pid = ReadFile(directory.File("pid"));
  REQUIRE_OK(pid);
  CHECK(IsDead(std::stoi(*pid)));
}

TEST_CASE_METHOD(Fixture, "while others run, what a worker left elsewhere may live") {
  REQUIRE_OK(
      Start("if [ $LOCAL_RANK = 1 ]; then exec sleep 600; "
            "fi; setsid sh -c 'echo moved $$; exec sleep 600 >/dev/null 2>&1' & "
            "sleep 0.2",
            2));
  RunUntil([this] { return exits.count(0) == 1; });
  const pid_t moved = PidAfter("moved ");
  CHECK_FALSE(IsDead(moved));
  group->Kill();
  RunUntilGone();
  CHECK(IsDead(moved));
}

TEST_CASE_METHOD(Fixture, "orphans that end are reaped while the workers run") {
  REQUIRE_OK(Start("(sh -c 'echo orphan $$; exit 0' &); exec sleep 600"));
  RunUntilOutput("orphan ");
  const pid_t orphan = PidAfter("orphan ");
  RunUntil([&] { return kill(orphan, 0) != 0; });
  group->Kill();
  RunUntilGone();
}

TEST_CASE_METHOD(Fixture,
                 "a stop reaches the whole group, and who was left by a dead leader may finish") {
  REQUIRE_OK(
      Start("sh -c 'trap \"echo saving; sleep 0.2; echo saved; exit 0\" TERM; echo ready; while :; "
            "do sleep 0.05; "
            "done' & wait"));
  RunUntilOutput("ready");
  group->Stop(SIGTERM, Everyone);
  RunUntilGone();
  CHECK(exits[0].status.signal == SIGTERM);
  CHECK_THAT(Output(), Catch::Contains("saving") && Catch::Contains("saved"));
}

TEST_CASE_METHOD(Fixture, "once nobody is left in a group, who moved away does not use its grace") {
  // The child dies of the stop a moment after its leader; `timeout` leads a group of its own.
  REQUIRE_OK(
      Start("sh -c 'trap \"sleep 0.1; exit\" TERM; echo child; while :; do sleep 0.01; done' & "
            "timeout 600 sh -c 'echo elsewhere $$; sleep 600' & exec sleep 600"));
  RunUntilOutput("child");
  RunUntilOutput("elsewhere ");
  group->Stop(SIGTERM, Everyone);
  RunUntilGone();
  CHECK(IsDead(PidAfter("elsewhere ")));
}

TEST_CASE_METHOD(Fixture, "only chosen workers get the signal, a kill ends all") {
  REQUIRE_OK(Start(
      "trap 'echo asked; exit 0' TERM; echo ready $LOCAL_RANK; while :; do sleep 0.02; done", 2));
  RunUntilOutput("ready 0");
  RunUntilOutput("ready 1");
  group->Stop(SIGTERM, [](int rank) { return rank == 1; });
  RunUntil([this] { return exits.count(1) == 1; });
  CHECK(exits.count(0) == 0);
  group->Kill();
  RunUntilGone();
  CHECK(exits[0].status.signal == SIGKILL);
}

TEST_CASE_METHOD(Fixture,
                 "a program that execve refuses is an error of Start, and the group is gone") {
  WorkerGroup::Worker worker;
  worker.spawn.program = "/no/such";
  worker.spawn.arguments = {"such"};
  CHECK_STATUS(group->Start({worker}), absl::StatusCode::kNotFound, "/no/such");
  CHECK(gone);
  REQUIRE_OK(WriteFileAtomic(directory.File("text"), "not a program"));
  chmod(directory.File("text").c_str(), 0755);
  WorkerGroup other(loop, console, custody, {},
                    {[](WorkerExited) {}, [] {}, [](const std::string&) {}});
  worker.spawn.program = directory.File("text");
  CHECK_STATUS(other.Start({worker}), absl::StatusCode::kInvalidArgument, "\"#!\"");
}

TEST_CASE_METHOD(Fixture, "workers die with the agent, even when it is killed") {
  const pid_t agent = fork();
  if (agent == 0) {
    // The child's event loop is its parent's descriptor: it only spawns.
    SpawnRequest request;
    request.program = "/bin/sh";
    request.arguments = {"sh", "-c", "echo worker $$; exec sleep 600"};
    request.stdout_fd = request.stderr_fd = output.get();
    const auto child = Spawn(request);
    if (!child.ok()) _exit(1);
    pause();
    _exit(0);
  }
  RunUntilOutput("worker ");
  const pid_t worker = PidAfter("worker ");
  CHECK_FALSE(IsDead(worker));
  kill(agent, SIGKILL);
  waitpid(agent, nullptr, 0);
  RunUntil([&] { return IsDead(worker); });
}

}  // namespace
}  // namespace convene::agent

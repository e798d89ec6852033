// The daemon and its journal: when messages may leave, and a daemon that is killed at every step.
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <cerrno>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "rendezvous/attend/daemon.h"
#include "rendezvous/attend/testing/inbox.h"
#include "rendezvous/journal/file_journal.h"
#include "rendezvous/quorum/messages.h"
#include "tools/base/clock.h"
#include "tools/base/files.h"
#include "tools/base/mutex.h"
#include "tools/base/testing/logged_text.h"
#include "tools/base/testing/status_testing.h"
#include "tools/base/testing/temp_dir.h"

namespace convene::rendezvous {
namespace {

// These tests kill a process, not the machine, so the files may lie in memory.
[[maybe_unused]] const bool kInMemory =
    access("/dev/shm", W_OK) == 0 && setenv("TEST_TMPDIR", "/dev/shm", /*overwrite=*/1) == 0;

Hello HelloOf(int agent, int nodes) {
  Hello hello;
  hello.job_id = "job";
  hello.host = absl::StrCat("node", agent);
  hello.nodes_min = hello.nodes_max = nodes;
  hello.max_restarts = 3;
  hello.lease = absl::Seconds(60);
  return hello;
}

std::unique_ptr<Daemon> StartDaemon(const std::string& directory, int64_t rewrite_bytes = 1 << 20) {
  auto memory = FileJournal::Open({directory, rewrite_bytes});
  if (!memory.ok()) std::fprintf(stderr, "%s\n", memory.status().ToString().c_str());
  REQUIRE(memory.ok());
  auto daemon = std::make_unique<Daemon>(&Clock::Real(), true, *std::move(memory));
  REQUIRE(daemon->Start().ok());
  return daemon;
}

// A disk whose syncs last until the test lets them go.
class SlowDisk {
 public:
  SlowDisk()
      : fault_([this](FileOp op, const std::string&) {
          if (op == FileOp::kSync) Wait();
          return 0;
        }) {}
  ~SlowDisk() { LetGo(); }
  void LetGo() {
    MutexLock lock(&mutex_);
    is_free_ = true;
    changed_.SignalAll();
  }

 private:
  void Wait() {
    MutexLock lock(&mutex_);
    while (!is_free_) changed_.Wait(&mutex_);
  }

  Mutex mutex_;
  CondVar changed_;
  bool is_free_ ABSL_GUARDED_BY(mutex_) = false;
  ScopedFileFault fault_;
};

TEST_CASE("a decision leaves when it is on the disk, and nobody else waits for that") {
  testing::TempDir directory;
  const auto daemon = StartDaemon(directory.path());
  Inbox inbox;
  const MemberId a = daemon->Open(inbox.SinkOf(0));
  daemon->Join(a, Incarnation(1), HelloOf(0, 1));
  CHECK(inbox.Expect<Welcome>(0).survives_restart);
  {
    SlowDisk disk;
    daemon->Receive(a, Incarnation(1), Epoch(), Ready{"node0", 1});
    CHECK((*daemon->Views("job"))[0].phase == "running");
    daemon->Receive(a, Incarnation(1), Epoch(), Heartbeat());
    inbox.Expect<Heard>(0);
    Hello other = HelloOf(1, 2);
    other.job_id = "other";
    daemon->Join(daemon->Open(inbox.SinkOf(1)), Incarnation(2), other);
    inbox.Expect<Welcome>(1);
    CHECK(inbox.empty());
    disk.LetGo();
    CHECK(inbox.Expect<Assignment>(0).group_world_size == 1);
  }
  daemon->Shutdown();
}

TEST_CASE("a disk that is full stops no job, and agents are told that a restart would") {
  testing::TempDir directory;
  auto daemon = StartDaemon(directory.path());
  Inbox inbox;
  const MemberId a = daemon->Open(inbox.SinkOf(0));
  daemon->Join(a, Incarnation(1), HelloOf(0, 1));
  CHECK(inbox.Expect<Welcome>(0).survives_restart);
  Hello other = HelloOf(1, 1);
  other.job_id = "other";
  const MemberId b = daemon->Open(inbox.SinkOf(1));
  {
    const ScopedFileFault full(
        [](FileOp op, const std::string&) { return op == FileOp::kWrite ? ENOSPC : 0; });
    daemon->Receive(a, Incarnation(1), Epoch(), Ready{"node0", 1});
    inbox.Expect<Assignment>(0);
    daemon->Join(b, Incarnation(2), other);
    CHECK_FALSE(inbox.Expect<Welcome>(1).survives_restart);
  }
  daemon->Receive(b, Incarnation(2), Epoch(), Ready{"node1", 1});
  inbox.Expect<Assignment>(1);  // With it, all that was not written before.
  daemon->Join(daemon->Open(inbox.SinkOf(2)), Incarnation(3), [] {
    Hello hello = HelloOf(2, 1);
    hello.job_id = "third";
    return hello;
  }());
  CHECK(inbox.Expect<Welcome>(2).survives_restart);
  daemon->Shutdown();
  daemon.reset();
  const auto memory = FileJournal::Open({directory.path()});
  REQUIRE(memory.ok());
  CHECK(memory->jobs.size() == 2);
}

TEST_CASE("a daemon that is stopped in order keeps every node's place") {
  testing::TempDir directory;
  Inbox inbox;
  {
    const auto daemon = StartDaemon(directory.path());
    const MemberId a = daemon->Open(inbox.SinkOf(0));
    daemon->Join(a, Incarnation(1), HelloOf(0, 1));
    inbox.Expect<Welcome>(0);
    daemon->Receive(a, Incarnation(1), Epoch(), Ready{"node0", 1});
    inbox.Expect<Assignment>(0);
    daemon->Shutdown();
    daemon->Disconnect(a);  // as the server does when the stream has ended
    inbox.Take();
  }
  const auto daemon = StartDaemon(directory.path());
  CHECK((*daemon->Views("job"))[0].nodes.at(0).state == "away");
  Hello hello = HelloOf(0, 1);
  hello.holds_place = true;
  hello.running_epoch = hello.last_epoch = Epoch(1);
  daemon->Join(daemon->Open(inbox.SinkOf(0)), Incarnation(1), hello);
  CHECK(inbox.Expect<Welcome>(0).resumed);
  daemon->Shutdown();
}

TEST_CASE("a name that is refused steers no terminal that shows the log") {
  const testing::LoggedText log;
  Inbox inbox;
  Daemon daemon(&Clock::Real(), /*quiet=*/false);
  REQUIRE(daemon.Start().ok());
  Hello hello = HelloOf(0, 1);
  hello.host = "\x1B[2J\nb";
  daemon.Join(daemon.Open(inbox.SinkOf(0)), Incarnation(1), hello);
  daemon.Shutdown();
  CHECK(log.CountOf(": refused ?[2J?b: host is ") == 1);
  CHECK(log.CountOf("\x1B") == 0);
}

TEST_CASE("a daemon without a journal leaves its job, with its past, to an agent that may host") {
  Inbox inbox;
  Daemon daemon(&Clock::Real(), true);
  REQUIRE(daemon.Start().ok());
  MemberId streams[2];
  for (const int agent : {0, 1}) {
    Hello hello = HelloOf(agent, 2);
    hello.may_host = agent == 0;
    streams[agent] = daemon.Open(inbox.SinkOf(agent));
    daemon.Join(streams[agent], Incarnation(agent + 1), hello);
    inbox.Expect<Welcome>(agent);
  }
  const auto say_ready = [&](int epoch) {
    for (const int agent : {0, 1}) {
      daemon.Receive(streams[agent], Incarnation(agent + 1), Epoch(epoch), Ready{"node", 1});
    }
    for (const int agent : {0, 1}) inbox.Expect<Assignment>(agent);
  };
  say_ready(0);
  WorkerFailure failure;
  failure.why = "exit code 1";
  daemon.Receive(streams[1], Incarnation(2), Epoch(1), failure);
  for (const int agent : {0, 1}) inbox.Expect<Stop>(agent);
  say_ready(1);
  daemon.Shutdown();
  const std::string state = inbox.Expect<HandOver>(0).state;
  CHECK(inbox.Expect<HandOver>(1).state.empty());
  for (int end = 0; end < 2; ++end) {
    CHECK(absl::IsUnavailable(std::get<absl::Status>(inbox.Take()->item)));
  }

  Daemon next(&Clock::Real(), true);
  CHECK_STATUS(next.TakeOver("junk"), absl::StatusCode::kDataLoss, "no job of a daemon");
  REQUIRE_OK(next.TakeOver(state));
  REQUIRE(next.Start().ok());
  next.BeginServing();
  Hello hello = HelloOf(1, 2);
  hello.holds_place = true;
  hello.running_epoch = hello.last_epoch = Epoch(2);
  next.Join(next.Open(inbox.SinkOf(1)), Incarnation(2), hello);
  CHECK(inbox.Expect<Welcome>(1).resumed);
  const JobView view = (*next.Views("job"))[0];
  CHECK(view.epoch == Epoch(2));
  CHECK(view.phase == "running");
  CHECK(view.restart_count == 1);
  REQUIRE(view.incidents.size() == 1);
  CHECK(view.incidents[0].epoch == Epoch(1));
  CHECK(absl::AbsDuration(WallNow() - view.incidents[0].time) < absl::Minutes(1));
  next.Shutdown();
}

// ---- killed at every step ----

constexpr int kAgents = 2;

// Two agents of one job, in memory that outlives the process they run in. In epoch 1 the first
// one's worker fails, in epoch 2 all succeed.
struct AgentState {
  enum Phase { kOutside, kWaiting, kRunning, kSucceeded, kDone };
  Phase phase = kOutside;
  bool welcomed = false;
  int64_t place = 0;
  int64_t seen = 0;            // the highest epoch
  int assigned[8] = {};        // how often, by epoch
  int failures_seen = 0;       // as the last Assignment said
  bool succeeded = false;      // what Close said
  bool was_restarted = false;  // it ran, and was not to go on
};

struct World {
  AgentState agents[kAgents];
  int kill_at = 0;  // 0: never
  std::atomic<int> steps;
};

// An event and the agent's answer to it are one step.
Mutex hearing;

// Kills this process when its time has come.
void Step(World* world) {
  MutexLock lock(&hearing);
  if (++world->steps == world->kill_at) kill(getpid(), SIGKILL);
}

class Life {
 public:
  Life(World* world, const std::string& directory)
      : world_(world), daemon_(StartDaemon(directory, 1)) {}

  // True when both agents are done.
  bool Run() {
    for (int agent = 0; agent < kAgents; ++agent) Connect(agent);
    while (!AllDone()) {
      std::optional<Inbox::Word> word = inbox_.Take();
      if (!word.has_value()) break;
      Step(world_);
      if (const auto* event = std::get_if<DaemonEvent>(&word->item)) {
        MutexLock lock(&hearing);
        Hear(word->agent, *event);
      }
      Step(world_);
    }
    daemon_->Shutdown();
    return AllDone();
  }

 private:
  bool AllDone() const {
    for (const AgentState& agent : world_->agents) {
      if (agent.phase != AgentState::kDone) return false;
    }
    return true;
  }

  void Connect(int index) {
    const AgentState& agent = world_->agents[index];
    if (agent.phase == AgentState::kDone) return;
    Hello hello = HelloOf(index, kAgents);
    hello.holds_place = agent.welcomed;
    hello.running_epoch = Epoch(agent.place);
    hello.last_epoch = Epoch(agent.seen);
    streams_[index] = daemon_->Open(inbox_.SinkOf(index));
    daemon_->Join(streams_[index], Incarnation(index + 1), hello);
  }

  void Say(int index, const AgentEvent& event) {
    daemon_->Receive(streams_[index], Incarnation(index + 1), Epoch(world_->agents[index].place),
                     event);
  }

  void SayReady(int index) {
    world_->agents[index].phase = AgentState::kWaiting;
    Say(index, Ready{absl::StrCat("node", index), 1});
  }

  void SayFailure(int index) {
    WorkerFailure failure;
    failure.why = "exit code 1";
    Say(index, failure);
  }

  void Hear(int index, const DaemonEvent& event) {
    AgentState& agent = world_->agents[index];
    agent.seen = std::max(agent.seen, event.epoch.value());
    if (const auto* welcome = std::get_if<Welcome>(&event.body)) {
      agent.welcomed = true;
      if (!welcome->resumed) {
        agent.was_restarted = agent.was_restarted || agent.place > 0;
        agent.place = 0;
        return SayReady(index);
      }
      if (agent.place == 1 && index == 0) SayFailure(index);
      if (agent.phase == AgentState::kSucceeded) return Say(index, WorkersSucceeded());
      if (agent.phase == AgentState::kWaiting) SayReady(index);
    } else if (std::holds_alternative<Assignment>(event.body)) {
      ++agent.assigned[event.epoch.value() % 8];
      agent.place = event.epoch.value();
      agent.failures_seen = std::get<Assignment>(event.body).restart_count;
      agent.phase = AgentState::kRunning;
      if (agent.place == 1 && index == 0) {
        SayFailure(index);
        SayReady(index);
      } else if (agent.place == 2) {
        agent.phase = AgentState::kSucceeded;
        Say(index, WorkersSucceeded());
      }
    } else if (std::holds_alternative<Stop>(event.body)) {
      if (agent.phase == AgentState::kRunning) SayReady(index);
    } else if (const auto* close = std::get_if<Close>(&event.body)) {
      agent.succeeded = close->outcome == Outcome::kSucceeded;
      agent.phase = AgentState::kDone;
    }
  }

  World* const world_;
  Inbox inbox_;
  const std::unique_ptr<Daemon> daemon_;
  MemberId streams_[kAgents];
};

// Runs a daemon in a process of its own; returns whether it got to its end.
bool LiveAndPerhapsDie(World* world, const std::string& directory) {
  const pid_t pid = fork();
  REQUIRE(pid >= 0);
  if (pid == 0) {
    const ScopedFileFault every_file_step([world](FileOp, const std::string&) {
      Step(world);
      return 0;
    });
    _exit(Life(world, directory).Run() ? 0 : 1);
  }
  int status = 0;
  REQUIRE(waitpid(pid, &status, 0) == pid);
  if (WIFEXITED(status)) CHECK(WEXITSTATUS(status) == 0);
  return WIFEXITED(status);
}

TEST_CASE(
    "killed at any step and started again: the same epochs, nobody restarted, nothing twice") {
  void* const memory =
      mmap(nullptr, sizeof(World), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  REQUIRE(memory != MAP_FAILED);
  int kill_at = 1;
  for (bool was_killed = true; was_killed; ++kill_at) {
    INFO("killed at step " << kill_at);
    testing::TempDir directory;
    World* const world = new (memory) World();
    world->kill_at = kill_at;
    was_killed = !LiveAndPerhapsDie(world, directory.path());
    if (was_killed) {
      // A second one dies, too, at a step that is luck; the third one may live.
      world->kill_at = world->steps + 1 + kill_at % 7;
      if (!LiveAndPerhapsDie(world, directory.path())) {
        world->kill_at = 0;
        REQUIRE(LiveAndPerhapsDie(world, directory.path()));
      }
    }
    for (const AgentState& agent : world->agents) {
      CHECK(agent.succeeded);
      CHECK_FALSE(agent.was_restarted);
      CHECK(agent.assigned[1] == 1);
      CHECK(agent.assigned[2] == 1);
      CHECK(agent.seen == 2);
      CHECK(agent.failures_seen == 1);
    }
    REQUIRE(kill_at < 1000);
  }
  CHECK(kill_at > 40);
  munmap(memory, sizeof(World));
}

}  // namespace
}  // namespace convene::rendezvous

#include "agent/hang/hang_watch.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tools/base/clock.h"
#include "tools/base/testing/status_testing.h"
#include "tools/base/unique_fd.h"
#include "worker_runtime/contract/progress_page.h"

namespace convene::agent {
namespace {

using Catch::Contains;

constexpr absl::Duration kPatience = absl::Seconds(20);

// Two workers that do nothing, and whose pages the test writes.
struct Fixture {
  explicit Fixture(absl::Duration step = absl::Milliseconds(200)) {
    limits.step = step;
    limits.automatic = false;
    HangWatch::Listener listener;
    listener.on_hang = [this](WorkerHung hung, bool by_debugger) {
      hangs.push_back(std::move(hung));
      is_by_debugger = by_debugger;
    };
    listener.on_log = [this](const std::string& line) { log += line + "\n"; };
    watch = std::make_unique<HangWatch>(loop, limits, "/nonexistent", listener);
    paths = watch->BeginEpoch(Epoch(3), 8, 2, 2);
    for (int i = 0; i < 2; ++i) {
      pids.push_back(fork());
      if (pids.back() == 0) {
        alarm(60);
        signal(SIGUSR2, [](int) {});
        while (true) pause();
      }
    }
  }
  ~Fixture() {
    for (const pid_t pid : pids) {
      kill(pid, SIGKILL);
      waitpid(pid, nullptr, 0);
    }
  }
  void Tell(int local_rank, int64_t step, pid_t pid = 0) {
    contract::ProgressPage page = {};
    std::memcpy(page.magic, contract::kProgressMagic, sizeof(page.magic));
    page.sequence = 2 * (step + 1);
    page.step = step;
    page.pid = static_cast<uint32_t>(pid);
    page.flags = flags;
    page.changed_at_ns = absl::ToInt64Nanoseconds(Clock::Real().Now().since_epoch());
    std::memcpy(page.phase, "step", 4);
    const UniqueFd file(open(paths[local_rank].c_str(), O_RDWR | O_CLOEXEC));
    REQUIRE(pwrite(file.get(), &page, sizeof(page), 0) == sizeof(page));
  }
  // `rank`: -1: nothing waits.
  void TellAwaited(int local_rank, int rank) {
    contract::ProgressPage page = {};
    page.awaits_sequence = 2;
    page.awaits_rank = static_cast<uint32_t>(rank + 1);
    constexpr size_t kAt = offsetof(contract::ProgressPage, awaits_sequence);
    const UniqueFd file(open(paths[local_rank].c_str(), O_RDWR | O_CLOEXEC));
    const char* const part = reinterpret_cast<const char*>(&page) + kAt;
    REQUIRE(pwrite(file.get(), part, sizeof(page) - kAt, kAt) == sizeof(page) - kAt);
  }
  void RunUntil(const std::function<bool()>& condition, absl::Duration patience = kPatience) {
    const MonotonicTime end = Clock::Real().Now() + patience;
    while (!condition() && Clock::Real().Now() < end) loop.RunOnce(end);
  }
  // Until the watch has seen this step of local rank 1, the slower one.
  void TellBoth(int64_t step) {
    Tell(0, step);
    Tell(1, step);
    RunUntil([&] { return watch->Progress().has_value() && watch->Progress()->step == step; });
  }

  uint32_t flags = 0;
  HangLimits limits;
  EventLoop loop;
  std::unique_ptr<HangWatch> watch;
  std::vector<std::string> paths;
  std::vector<pid_t> pids;
  std::vector<WorkerHung> hangs;
  bool is_by_debugger = false;  // the latest of them
  std::string log;
};

TEST_CASE_METHOD(Fixture, "a worker that stands still is told of once, with where it stands") {
  watch->Watch(pids);
  TellBoth(1);
  TellBoth(2);
  Tell(0, 3);
  RunUntil([&] { return !hangs.empty(); });
  REQUIRE(hangs.size() == 1);
  CHECK(hangs[0].local_rank == 1);
  CHECK(hangs[0].epoch == Epoch(3));
  CHECK(hangs[0].pid == pids[1]);
  CHECK_THAT(hangs[0].why,
             Contains("phase step, step 2; the others here: rank 8 at step 3 (step)"));
  REQUIRE_FALSE(hangs[0].last_log_lines.empty());
  CHECK_THAT(hangs[0].last_log_lines[0], Contains("rank 9 (pid "));
  CHECK_FALSE(is_by_debugger);
  CHECK_THAT(log, Contains("looking where it stands"));
  RunUntil([&] { return hangs.size() > 1; }, absl::Milliseconds(500));
  CHECK(hangs.size() == 1);
}

// Both workers stand still, and local rank 0 is looked at, which takes half a second.
struct Suspected : Fixture {
  Suspected() {
    flags = contract::kProgressDumpsOnSignalFlag;
    watch->Watch(pids);
    TellBoth(1);
    TellBoth(2);
    TellAwaited(0, -1);
    TellAwaited(1, 8);
    RunUntil([&] { return absl::StrContains(log, "looking where it stands"); });
    REQUIRE_THAT(log, Contains("rank 8 (pid "));
  }
};

TEST_CASE_METHOD(Suspected, "a worker that begins to wait while it is looked at has not gone on") {
  TellAwaited(0, 9);
  TellAwaited(1, -1);
  RunUntil([&] { return !hangs.empty(); });
  REQUIRE(hangs.size() == 1);
  CHECK(hangs[0].local_rank == 0);
  CHECK_THAT(hangs[0].why, Contains("it waits for no other rank"));
  CHECK_THAT(log, !Contains("went on"));
}

TEST_CASE_METHOD(Suspected, "a worker that goes on while it is looked at is not stopped") {
  Tell(0, 3);
  RunUntil([&] { return absl::StrContains(log, "went on"); });
  CHECK_THAT(log, Contains("rank 8 went on by itself meanwhile: it is not stopped"));
  CHECK(hangs.empty());
}

// A worker that is a wrapper around the process that tells its progress.
struct Wrapped : Fixture {
  Wrapped() {
    int ends[2];
    REQUIRE(pipe(ends) == 0);
    const pid_t wrapper = fork();
    if (wrapper == 0) {
      const pid_t child = fork();
      if (child > 0 && write(ends[1], &child, sizeof(child)) != sizeof(child)) _exit(1);
      alarm(60);
      while (true) pause();
    }
    REQUIRE(read(ends[0], &inner, sizeof(inner)) == sizeof(inner));
    close(ends[0]);
    close(ends[1]);
    kill(pids[1], SIGKILL);
    waitpid(pids[1], nullptr, 0);
    pids[1] = wrapper;
  }
  ~Wrapped() { kill(inner, SIGKILL); }

  pid_t inner = 0;
};

TEST_CASE_METHOD(Wrapped, "where a wrapper started the process that tells, that one is looked at") {
  CHECK(TellingProcess(pids[1], inner) == inner);
  CHECK(TellingProcess(pids[1], 0) == pids[1]);
  CHECK(TellingProcess(pids[1], pids[0]) == pids[1]);
  CHECK(TellingProcess(pids[1], 1) == pids[1]);
  CHECK(TellingProcess(pids[1], INT32_MAX) == pids[1]);
  watch->Watch(pids);
  TellBoth(1);
  TellBoth(2);
  Tell(1, 2, inner);
  Tell(0, 3);
  RunUntil([&] { return !hangs.empty(); });
  REQUIRE(hangs.size() == 1);
  CHECK(hangs[0].pid == pids[1]);
  REQUIRE_FALSE(hangs[0].last_log_lines.empty());
  CHECK_THAT(hangs[0].last_log_lines[0], Contains(absl::StrCat("rank 9 (pid ", inner, ")")));
}

TEST_CASE_METHOD(Fixture, "nobody is judged before the workers run, nor when they are stopped") {
  Tell(0, 1);
  RunUntil([&] { return !hangs.empty(); }, absl::Milliseconds(400));
  watch->Watch(pids);
  TellBoth(2);
  TellBoth(3);
  CHECK(watch->Progress().has_value());
  watch->EndEpoch();
  CHECK_FALSE(watch->Progress().has_value());
  RunUntil([&] { return !hangs.empty(); }, absl::Milliseconds(500));
  CHECK(hangs.empty());
}

TEST_CASE_METHOD(Fixture, "a worker that ended is not waited for") {
  watch->Watch(pids);
  TellBoth(1);
  TellBoth(2);
  watch->WorkerEnded(0, /*is_well=*/true);
  watch->WorkerEnded(1, /*is_well=*/false);
  RunUntil([&] { return !hangs.empty(); }, absl::Milliseconds(500));
  CHECK(hangs.empty());
}

TEST_CASE_METHOD(Fixture, "a worker that ended with 0 is named where another one hangs") {
  watch->Watch(pids);
  TellBoth(1);
  TellBoth(2);
  Tell(0, 5);  // no look has seen it
  watch->WorkerEnded(0, /*is_well=*/true);
  RunUntil([&] { return !hangs.empty(); });
  REQUIRE(hangs.size() == 1);
  CHECK(hangs[0].local_rank == 1);
  CHECK_THAT(hangs[0].why, Contains("; ended with 0: rank 8 (after step 5, "));
}

TEST_CASE_METHOD(Fixture, "while nobody reads the workers' output nobody hangs") {
  watch->Watch(pids);
  TellBoth(1);
  TellBoth(2);
  watch->SetPaused(true);
  RunUntil([&] { return !hangs.empty(); }, absl::Milliseconds(500));
  CHECK(hangs.empty());
  watch->SetPaused(false);
  RunUntil([&] { return !hangs.empty(); });
  CHECK(hangs.size() == 1);
}

TEST_CASE_METHOD(Fixture, "each epoch has pages of its own") {
  const std::vector<std::string> before = paths;
  paths = watch->BeginEpoch(Epoch(4), 0, 1, 2);
  CHECK(paths[0] != before[0]);
  CHECK(access(before[0].c_str(), F_OK) != 0);
  CHECK(access(paths[1].c_str(), F_OK) == 0);
}

}  // namespace
}  // namespace convene::agent

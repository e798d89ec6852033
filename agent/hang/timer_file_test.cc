#include "agent/hang/timer_file.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <climits>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tools/base/clock.h"
#include "tools/base/files.h"
#include "tools/base/testing/status_testing.h"
#include "tools/base/testing/temp_dir.h"

namespace convene::agent {
namespace {

using Catch::Contains;
using testing::TempDir;

// A process that waits for a signal, and the file that times it.
struct Fixture {
  Fixture() {
    TimerFile::Listener listener;
    listener.on_expired = [this](const TimerTable::Expired& e) { expired.push_back(e); };
    listener.on_log = [this](const std::string& line) { log += line + "\n"; };
    auto created = TimerFile::Create(loop, directory.File("timers"), listener);
    REQUIRE_OK(created);
    file = *std::move(created);
    pid = fork();
    if (pid == 0) {
      alarm(60);
      while (true) pause();
    }
  }
  ~Fixture() {
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
  }
  // As PyTorch's client does: opens, writes one line, closes.
  void Write(const std::string& text) {
    const UniqueFd fifo(open(file->path().c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC));
    REQUIRE(write(fifo.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()));
  }
  // Negative: releases.
  std::string Request(int64_t of, double seconds, int signal = SIGTERM) {
    const double now = absl::ToDoubleSeconds(WallNow() - absl::UnixEpoch());
    return absl::StrFormat(
        R"({"version": 1, "pid": %d, "scope_id": "a#1", "expiration_time": %.6f, "signal": %d})"
        "\n",
        of, seconds < 0 ? -1 : now + seconds, signal);
  }
  void RunUntil(const std::function<bool()>& condition) {
    const MonotonicTime end = Clock::Real().Now() + absl::Seconds(20);
    while (!condition() && Clock::Real().Now() < end) loop.RunOnce(end);
    REQUIRE(condition());
  }

  TempDir directory;
  EventLoop loop;
  std::vector<TimerTable::Expired> expired;
  std::string log;
  std::unique_ptr<TimerFile> file;
  pid_t pid = -1;
};

TEST_CASE("a process whose timer is over gets its signal, once, when it is reaped") {
  Fixture f;
  f.Write(f.Request(f.pid, 0.02));
  f.RunUntil([&] { return !f.expired.empty(); });
  CHECK(f.expired[0].pid == f.pid);
  CHECK_THAT(f.log, Contains(absl::StrCat("process ", f.pid, ": its timer \"a#1\" is over")));
  CHECK(waitpid(f.pid, nullptr, WNOHANG) == 0);
  f.file->Reap(f.pid);
  int status = 0;
  CHECK(waitpid(f.pid, &status, 0) == f.pid);
  CHECK(WTERMSIG(status) == SIGTERM);
}

TEST_CASE("a timer that is released, or has no signal, harms nobody") {
  Fixture f;
  f.Write(f.Request(f.pid, 0.05) + f.Request(f.pid, -1));
  f.Write(f.Request(f.pid, 0.1, 0));
  f.RunUntil([&] { return !f.log.empty(); });
  CHECK_THAT(f.log, Contains("it has no signal, so nothing is done"));
  f.file->Reap(f.pid);
  CHECK(f.expired.empty());
  CHECK(waitpid(f.pid, nullptr, WNOHANG) == 0);
}

TEST_CASE("the timers of a process end with it, and its number is nobody's") {
  Fixture f;
  f.Write(f.Request(f.pid, 0.3));
  kill(f.pid, SIGKILL);
  // A process that is gone when its request is read.
  const pid_t gone = fork();
  if (gone == 0) _exit(0);
  waitpid(gone, nullptr, 0);
  f.Write(f.Request(gone, 0.1));
  f.Write(f.Request(getpid(), 0.6));
  f.RunUntil([&] { return !f.expired.empty(); });
  CHECK(f.expired.size() == 1);
  CHECK(f.expired[0].pid == getpid());
}

TEST_CASE("what is no request is told of once, and what comes after it counts") {
  Fixture f;
  f.Write("nonsense\n\n" + f.Request(f.pid, 0.02));
  f.Write(std::string(3 * PIPE_BUF, 'x'));
  f.Write("\n");
  f.RunUntil([&] { return !f.expired.empty(); });
  CHECK_THAT(f.log, Contains("is no timer request of PyTorch's: nonsense\n") && !Contains("xxx"));
}

TEST_CASE("a FIFO that was left behind is replaced, one in use and another file are not") {
  EventLoop loop;
  const TempDir directory;
  const std::string path = directory.File("timers");
  TimerFile::Listener listener;
  REQUIRE(mkfifo(path.c_str(), 0600) == 0);
  auto first = TimerFile::Create(loop, path, listener);
  REQUIRE_OK(first);
  auto second = TimerFile::Create(loop, path, listener);
  CHECK(absl::IsAlreadyExists(second.status()));
  CHECK_THAT(std::string(second.status().message()), Contains("another agent on this machine"));
  first->reset();
  CHECK(access(path.c_str(), F_OK) != 0);
  REQUIRE_OK(WriteFileAtomic(path, "precious"));
  CHECK(absl::IsAlreadyExists(TimerFile::Create(loop, path, listener).status()));
  CHECK(absl::IsFailedPrecondition(
      TimerFile::Create(loop, directory.File("no/such/folder"), listener).status()));
}

}  // namespace
}  // namespace convene::agent

#include "worker_runtime/checkpoint/directory_lock.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tools/base/files.h"
#include "tools/base/logging.h"
#include "tools/base/testing/manual_clock.h"
#include "tools/base/testing/status_testing.h"
#include "tools/base/testing/temp_dir.h"

namespace convene::worker {
namespace {

using testing::TempDir;

struct Attempt {
  ManualClock clock;
  std::vector<std::string> said;
  bool has_own_name = true;

  absl::StatusOr<DirectoryLock> Acquire(const TempDir& dir, const std::string& job,
                                        bool is_restart = false) {
    return LockDirectory(dir.path(),
                         {.job = job,
                          .is_restart = is_restart,
                          .has_own_name = has_own_name,
                          .on_wait = [this](const std::string& text) { said.push_back(text); },
                          .clock = &clock});
  }
};

TEST_CASE("a second holder waits its time and is told who the first is") {
  TempDir dir;
  Attempt first, second;
  const auto held = first.Acquire(dir, "alpha");
  REQUIRE_OK(held);
  CHECK(first.said.empty());
  const absl::Status refused = second.Acquire(dir, "beta").status();
  CHECK_STATUS(refused, absl::StatusCode::kAlreadyExists,
               absl::StrCat(dir.path(), " is being written to by process ", getpid(), " on ",
                            HostName(), ", job alpha, since 2"));
  CHECK(second.clock.Now() - MonotonicTime() >= absl::Seconds(5));
  REQUIRE(second.said.size() == 1);
  CHECK_THAT(second.said[0], Catch::Contains("job alpha") && Catch::Contains("waiting up to 5s"));
}

TEST_CASE("a restarted job waits longer for its own predecessor, and then takes its place") {
  TempDir dir;
  Attempt first, restarted, other, nameless, again;
  const auto held = first.Acquire(dir, "alpha\nbeta");
  REQUIRE_OK(held);
  CHECK_OK(held->Check());
  CHECK_STATUS(other.Acquire(dir, "alpha", /*is_restart=*/true), absl::StatusCode::kAlreadyExists,
               "job alpha");
  CHECK(other.clock.Now() - MonotonicTime() < absl::Seconds(6));
  CHECK_STATUS(nameless.Acquire(dir, "", /*is_restart=*/true), absl::StatusCode::kAlreadyExists,
               "job alpha");
  CHECK_OK(held->Check());
  // Its machine is lost, and the file server will never free the lock.
  const auto replaced = restarted.Acquire(dir, "alpha\nbeta", /*is_restart=*/true);
  REQUIRE_OK(replaced);
  CHECK(restarted.clock.Now() - MonotonicTime() >= absl::Minutes(2));
  REQUIRE(restarted.said.size() == 2);
  CHECK_THAT(restarted.said[1], Catch::Contains("an earlier start of this job: it is given up"));
  CHECK_OK(replaced->Check());
  // It only stood still.
  CHECK_STATUS(held->Check(), absl::StatusCode::kAborted,
               absl::StrCat(dir.path(), " has been taken over by process ", getpid()));
  CHECK_STATUS(again.Acquire(dir, "beta"), absl::StatusCode::kAlreadyExists, "job alpha");
  CHECK(*ListDirectory(dir.path()) == std::vector<std::string>{"writer.lock"});
}

TEST_CASE("a job whose name is not its own takes nobody's place") {
  TempDir dir;
  Attempt first, other;
  const auto held = first.Acquire(dir, "none");
  REQUIRE_OK(held);
  other.has_own_name = false;
  CHECK_STATUS(other.Acquire(dir, "none", /*is_restart=*/true), absl::StatusCode::kDeadlineExceeded,
               "job none");
  CHECK(other.clock.Now() - MonotonicTime() >= absl::Minutes(2));
  CHECK_OK(held->Check());
}

TEST_CASE("a job that waits sees that the file it waits for has been replaced") {
  TempDir dir;
  Attempt first, restarted;
  auto held = first.Acquire(dir, "alpha");
  REQUIRE_OK(held);
  absl::StatusOr<DirectoryLock> replaced = absl::UnknownError("not yet");
  const auto waited = LockDirectory(
      dir.path(), {.job = "beta", .wait_timeout = absl::Seconds(1), .on_wait = [&](auto&) {
                     replaced = restarted.Acquire(dir, "alpha", /*is_restart=*/true);
                     // The file that is not in its place any more has no lock now.
                     *held = DirectoryLock();
                   }});
  REQUIRE_OK(replaced);
  CHECK_STATUS(waited, absl::StatusCode::kAlreadyExists, "job alpha");
  CHECK_OK(replaced->Check());
}

TEST_CASE("a holder on another machine gets the time after which a file server lets go") {
  TempDir dir;
  Attempt first, second;
  const auto held = first.Acquire(dir, "alpha");
  REQUIRE_OK(held);
  const std::string words = "alpha\nprocess 7 on elsewhere, job alpha, since today\n";
  const auto file = OpenFile(dir.File("writer.lock"), O_WRONLY | O_TRUNC);
  REQUIRE_OK(file);
  REQUIRE_OK(WriteAll(file->get(), words, "writer.lock"));
  CHECK_STATUS(second.Acquire(dir, "beta"), absl::StatusCode::kAlreadyExists,
               "process 7 on elsewhere");
  CHECK(second.clock.Now() - MonotonicTime() >= absl::Minutes(2));
}

TEST_CASE("a lock whose file a person has removed is free, and its holder notices the next one") {
  TempDir dir;
  Attempt first, second;
  const auto held = first.Acquire(dir, "alpha");
  REQUIRE_OK(held);
  REQUIRE_OK(RemoveTree(dir.File("writer.lock")));
  CHECK_OK(held->Check());
  const auto next = second.Acquire(dir, "beta");
  REQUIRE_OK(next);
  CHECK_STATUS(held->Check(), absl::StatusCode::kAborted, "job beta");
}

TEST_CASE("who writes into a directory is told without asking for its lock") {
  TempDir dir;
  Attempt first, second;
  CHECK(WriterOf(dir.path()) == "");
  {
    const auto held = first.Acquire(dir, "alpha");
    REQUIRE_OK(held);
    CHECK_THAT(WriterOf(dir.path()), Catch::Contains("job alpha, since "));
    CHECK_OK(held->Check());
  }
  CHECK(WriterOf(dir.path()) == "");
  CHECK_OK(second.Acquire(dir, "beta"));
}

TEST_CASE("a holder that goes is followed, and its words with it") {
  TempDir dir;
  Attempt first, second, third;
  {
    const auto held = first.Acquire(dir, "a job with quite a long name");
    REQUIRE_OK(held);
  }
  const auto held = second.Acquire(dir, "beta");
  REQUIRE_OK(held);
  CHECK(second.said.empty());
  CHECK_THAT(*ReadFile(dir.File("writer.lock")),
             Catch::Contains("job beta") && !Catch::Contains("quite"));
}

TEST_CASE("the lock of a killed process is free, and one that ends during the wait is waited for") {
  TempDir dir;
  int ready[2];
  REQUIRE(pipe(ready) == 0);
  const pid_t child = fork();
  if (child == 0) {
    const auto held = LockDirectory(dir.path(), {.job = "killed"});
    const bool told = write(ready[1], held.ok() ? "y" : "n", 1) == 1;
    if (told) pause();
    _exit(1);
  }
  char answer = 0;
  REQUIRE(read(ready[0], &answer, 1) == 1);
  REQUIRE(answer == 'y');
  int kills = 0;
  const auto held = LockDirectory(
      dir.path(), {.job = "next", .on_wait = [&](const std::string& text) {
                     CHECK_THAT(text, Catch::Contains(absl::StrCat("process ", child)));
                     kills += kill(child, SIGKILL) == 0 ? 1 : 0;
                     waitpid(child, nullptr, 0);
                   }});
  CHECK_OK(held);
  CHECK(kills == 1);
  close(ready[0]);
  close(ready[1]);
}

TEST_CASE("a directory that cannot hold the file says so") {
  TempDir dir;
  CHECK_STATUS(LockDirectory(dir.File("absent"), {}), absl::StatusCode::kNotFound, "writer.lock");
}

}  // namespace
}  // namespace convene::worker

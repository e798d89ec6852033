#include "worker_runtime/checkpoint/directory_lock.h"

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

  absl::StatusOr<UniqueFd> Acquire(const TempDir& dir, const std::string& job,
                                   bool is_restart = false) {
    return LockDirectory(dir.path(),
                         {.job = job,
                          .is_restart = is_restart,
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

TEST_CASE("a restarted job waits longer for its own predecessor, and may try again") {
  TempDir dir;
  Attempt first, restarted, other, nameless;
  const auto held = first.Acquire(dir, "alpha\nbeta");
  REQUIRE_OK(held);
  CHECK_STATUS(restarted.Acquire(dir, "alpha\nbeta", /*is_restart=*/true),
               absl::StatusCode::kDeadlineExceeded, "job alpha");
  CHECK(restarted.clock.Now() - MonotonicTime() >= absl::Minutes(2));
  CHECK_STATUS(other.Acquire(dir, "alpha", /*is_restart=*/true), absl::StatusCode::kAlreadyExists,
               "job alpha");
  CHECK(other.clock.Now() - MonotonicTime() < absl::Seconds(6));
  CHECK_STATUS(nameless.Acquire(dir, "", /*is_restart=*/true), absl::StatusCode::kAlreadyExists,
               "job alpha");
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

#include "worker_runtime/session/stack_dump.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <string>

#include <catch2/catch.hpp>
#include "tools/base/thread.h"
#include "tools/base/unique_fd.h"

namespace convene::worker {
namespace {

// The last of two says "." on stderr.
__attribute__((noinline)) void WaitForEver(std::atomic<int>& waiting) {
  if (++waiting == 2 && write(STDERR_FILENO, ".", 1) != 1) _exit(1);
  while (true) pause();
}

// A process with two threads in WaitForEver.
[[noreturn]] void BeWorker(int stderr_fd) {
  alarm(30);
  dup2(stderr_fd, STDERR_FILENO);
  InstallStackDump("worker");
  std::atomic<int> waiting{0};
  const Thread other("other", [&] { WaitForEver(waiting); });
  WaitForEver(waiting);
  _exit(1);
}

std::string ReadUntil(int fd, const std::string& end) {
  std::string text;
  char buffer[4096];
  while (text.find(end) == std::string::npos) {
    const ssize_t n = read(fd, buffer, sizeof(buffer));
    if (n <= 0) break;
    text.append(buffer, n);
  }
  return text;
}

TEST_CASE("SIGUSR2 shows where each thread waits, again and again, and the process goes on") {
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  const UniqueFd out(ends[0]);
  UniqueFd in(ends[1]);
  const pid_t pid = fork();
  REQUIRE(pid >= 0);
  if (pid == 0) BeWorker(in.get());
  in.Reset();
  CHECK(ReadUntil(out.get(), ".") == ".");
  for (int round = 0; round < 2; ++round) {
    REQUIRE(kill(pid, SIGUSR2) == 0);
    const std::string text = ReadUntil(out.get(), "all stacks are written\n");
    INFO(text);
    CHECK_THAT(text, Catch::Contains(" other\n") && Catch::Contains("WaitForEver") &&
                         Catch::Contains("SIGUSR2: all stacks are written\n"));
    CHECK(text.find("WaitForEver") != text.rfind("WaitForEver"));
  }
  kill(pid, SIGKILL);
  int status = 0;
  REQUIRE(waitpid(pid, &status, 0) == pid);
  CHECK(WIFSIGNALED(status));
  CHECK(WTERMSIG(status) == SIGKILL);
}

}  // namespace
}  // namespace convene::worker

#include "agent/custody/guardian.h"

#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <fstream>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace convene::agent {
namespace {

bool Runs(pid_t pid) {
  std::ifstream stat(absl::StrCat("/proc/", pid, "/stat"));
  std::string text;
  std::getline(stat, text);
  const size_t name_end = text.rfind(')');
  return name_end != std::string::npos && text[name_end + 2] != 'Z' && text[name_end + 2] != 'X';
}

// An agent with one worker, whose number it tells when all is as in an agent; until it is killed.
[[noreturn]] void BeAgent(int other_end, UniqueFd connection, int tell) {
  close(other_end);
  EventLoop loop;
  Guardian guardian(loop, "token of guardian_test", "", "");
  int ready[2];
  if (pipe(ready) != 0) _exit(1);
  pid_t worker = fork();
  if (worker == 0) {
    worker = setsid();
    guardian.page().sessions[0] = worker;
    connection.Reset();
    if (write(ready[1], &worker, sizeof(worker)) != sizeof(worker)) _exit(1);
    alarm(60);
    while (true) pause();
  }
  if (read(ready[0], &worker, sizeof(worker)) != sizeof(worker)) _exit(1);
  guardian.Hold(UniqueFd(dup(connection.get())));
  if (write(tell, &worker, sizeof(worker)) != sizeof(worker)) _exit(1);
  alarm(60);
  while (true) pause();
}

TEST_CASE("the other end of the connection sees the agent's end when its workers are dead") {
  for (int round = 0; round < 10; ++round) {
    int ends[2], told[2];
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    REQUIRE(pipe(told) == 0);
    UniqueFd ours(ends[0]), agents(ends[1]), hear(told[0]), tell(told[1]);
    const pid_t agent = fork();
    if (agent == 0) BeAgent(ours.get(), std::move(agents), tell.get());
    agents.Reset();
    pid_t worker = 0;
    REQUIRE(read(hear.get(), &worker, sizeof(worker)) == sizeof(worker));
    REQUIRE(Runs(worker));
    kill(agent, SIGKILL);
    pollfd end = {ours.get(), POLLIN, 0};
    REQUIRE(poll(&end, 1, 20'000) == 1);
    char byte = 0;
    CHECK(read(ours.get(), &byte, 1) == 0);
    CHECK_FALSE(Runs(worker));
    waitpid(agent, nullptr, 0);
  }
}

}  // namespace
}  // namespace convene::agent

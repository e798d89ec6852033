// Workers that hang, nodes that are unfit, and what workers are bound to: real processes and the
// real rendezvous, on loopback.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "agent/agent.h"
#include "agent/options.h"
#include "tools/base/clock.h"
#include "tools/base/files.h"
#include "tools/base/testing/poll.h"
#include "tools/base/testing/temp_dir.h"
#include "tools/base/unique_fd.h"

namespace convene::agent {
namespace {

using Catch::Contains;

constexpr absl::Duration kPatience = absl::Seconds(40);

// Writes its page as the README says: quick steps to 5, then whatever `then` says.
std::string Python(const std::string& then) {
  return absl::StrCat(
      "exec python3 -c 'import mmap, os, struct, sys, time\n"
      "page = mmap.mmap(os.open(os.environ[\"CONVENE_PROGRESS\"], os.O_RDWR), 4096)\n"
      "rank = int(os.environ[\"RANK\"])\n"
      "restarts = int(os.environ[\"TORCHELASTIC_RESTART_COUNT\"])\n"
      "def tell(step, phase=\"step\"):\n"
      "  page[8:16] = struct.pack(\"<Q\", 2 * step + 1)\n"
      "  page[16:64] = struct.pack(\"<qQII24s\", step, time.monotonic_ns(), 2, 0, phase.encode())\n"
      "  page[8:16] = struct.pack(\"<Q\", 2 * step + 2)\n"
      "for step in range(6):\n"
      "  tell(step)\n"
      "  time.sleep(0.05)\n",
      then, "'");
}

struct Fixture {
  Fixture() {
    options.hello.job_id = "job";
    options.hello.host = "node0";
    options.endpoint = "localhost:0";
    options.may_host = true;
    options.store_host = "127.0.0.1";
    options.stop_graces.abort = absl::Seconds(2);
    options.extra_environment = {{"TEST_DIR", directory.path()}};
    options.hang_limits.step = absl::Milliseconds(800);
    options.hang_limits.automatic = false;
  }
  ~Fixture() {
    if (pid > 0) {
      kill(pid, SIGKILL);
      waitpid(pid, nullptr, 0);
    }
  }
  void Start(const std::string& script, int workers = 1) {
    options.command = {"sh", "-c", script};
    options.hello.local_world_size = workers;
    pid = fork();
    REQUIRE(pid >= 0);
    if (pid != 0) return;
    const UniqueFd out(
        open(directory.File("out").c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
    dup2(out.get(), STDOUT_FILENO);
    dup2(out.get(), STDERR_FILENO);
    const Result result = RunAgent(options);
    WriteFileAtomic(directory.File("explanation"), result.explanation).IgnoreError();
    _exit(result.exit_code);
  }
  int Wait() {
    const UniqueFd pidfd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
    pollfd waiting = {pidfd.get(), POLLIN, 0};
    INFO(Out());
    REQUIRE(poll(&waiting, 1, absl::ToInt64Milliseconds(kPatience)) == 1);
    int status = 0;
    waitpid(pid, &status, 0);
    pid = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  int Run(const std::string& script, int workers = 1) {
    Start(script, workers);
    return Wait();
  }
  std::string Read(const std::string& name) const {
    const auto content = ReadFile(directory.File(name));
    return content.ok() ? *content : "";
  }
  std::string Out() const { return Read("out"); }
  std::string Explanation() const { return Read("explanation"); }

  testing::TempDir directory;
  AgentOptions options;
  pid_t pid = -1;
};

TEST_CASE_METHOD(Fixture,
                 "a worker that stops stepping is told of with its place, and runs again") {
  options.hello.max_restarts = 1;
  CHECK(Run(Python("while restarts == 0 and rank == 1: time.sleep(1)\n"
                   "for step in range(5, 40 if restarts == 0 else 0):\n"
                   "  tell(step)\n"
                   "  time.sleep(0.1)\n"),
            2) == 0);
  INFO(Out());
  CHECK_THAT(Out(), Contains("hang: no step for ") &&
                        Contains("(limit 0.8 s), phase step, step 5") &&
                        Contains("the others here: rank 0 at step ") &&
                        Contains(", as the kernel sees them"));
  CHECK_THAT(Out(), Contains("epoch 2: node 0"));
}

TEST_CASE_METHOD(Fixture, "a hang that spends the budget is explained with where it stood") {
  CHECK(Run(Python("time.sleep(600)\n")) == 1);
  CHECK_THAT(Explanation(), Contains("The first failure was rank 0") &&
                                Contains("hang: no step for ") && Contains("Its last lines:"));
}

TEST_CASE_METHOD(Fixture,
                 "slow work in another phase, and a worker that never tells, are no hang") {
  CHECK(Run(absl::StrCat("if [ $RANK = 1 ]; then sleep 3; exit 0; fi; ",
                         Python("tell(5, \"validation\")\ntime.sleep(3)\n")),
            2) == 0);
  CHECK_THAT(Out(), !Contains("hang"));
}

TEST_CASE_METHOD(Fixture, "a node that fails its health check starts nothing and ends with 71") {
  options.health_check.command = "echo GPU 3 has fallen off the bus >&2; exit 4";
  CHECK(Run("touch $TEST_DIR/started") == 71);
  CHECK_THAT(Explanation(), Contains("node0 is unfit") && Contains("ended with exit code 4") &&
                                Contains("GPU 3 has fallen off the bus"));
  CHECK(access(directory.File("started").c_str(), F_OK) != 0);
}

TEST_CASE_METHOD(Fixture, "the health check is made before each epoch, and knows the job") {
  options.hello.max_restarts = 1;
  options.health_check.command =
      "echo $CONVENE_EPOCH $TORCHELASTIC_RUN_ID $LOCAL_WORLD_SIZE >> $TEST_DIR/checks";
  CHECK(Run("[ $TORCHELASTIC_RESTART_COUNT = 1 ]", 2) == 0);
  CHECK(Read("checks") == "0 job 2\n1 job 2\n");
}

TEST_CASE_METHOD(Fixture, "a signal ends the health check with all that it started") {
  options.health_check.command = "sleep 600 & echo $! > $TEST_DIR/pid; wait";
  Start("true");
  int sleeper = 0;
  REQUIRE(testing::PollUntil([&] { return absl::SimpleAtoi(Read("pid"), &sleeper); }, kPatience));
  const UniqueFd sleeper_fd(static_cast<int>(syscall(SYS_pidfd_open, sleeper, 0)));
  REQUIRE(sleeper_fd.valid());
  kill(pid, SIGTERM);
  CHECK(Wait() == 128 + SIGTERM);
  pollfd waiting = {sleeper_fd.get(), POLLIN, 0};
  CHECK(poll(&waiting, 1, absl::ToInt64Milliseconds(kPatience)) == 1);
}

TEST_CASE_METHOD(Fixture,
                 "workers with virtual local ranks see one device each, and know their own") {
  options.virtual_local_rank = true;
  options.extra_environment["CUDA_VISIBLE_DEVICES"] = "GPU-aa,5";
  CHECK(Run("echo $RANK: $LOCAL_RANK of $LOCAL_WORLD_SIZE, $CUDA_VISIBLE_DEVICES, "
            "$CONVENE_LOCAL_RANK",
            2) == 0);
  CHECK_THAT(Out(), Contains("[0] 0: 0 of 2, GPU-aa, 0\n") && Contains("[1] 1: 0 of 2, 5, 1\n"));
}

TEST_CASE_METHOD(Fixture, "more virtual local ranks than devices are a usage error") {
  options.virtual_local_rank = true;
  options.extra_environment["CUDA_VISIBLE_DEVICES"] = "5";
  CHECK(Run("true", 2) == 64);
  CHECK_THAT(Explanation(), Contains("CUDA_VISIBLE_DEVICES=5 has no device for local rank 1"));
}

TEST_CASE_METHOD(Fixture, "workers are bound to CPUs before they start") {
  if (std::thread::hardware_concurrency() < 2) return;
  options.numa_binding = NumaBinding::kExclusive;
  CHECK(Run("grep Cpus_allowed_list /proc/self/status", 2) == 0);
  std::vector<std::string> lists;
  for (const absl::string_view line : absl::StrSplit(Out(), '\n')) {
    const size_t at = line.find("Cpus_allowed_list:\t");
    if (at != absl::string_view::npos) lists.emplace_back(line.substr(at));
  }
  INFO(Out());
  REQUIRE(lists.size() == 2);
  CHECK(lists[0] != lists[1]);
}

}  // namespace
}  // namespace convene::agent

// The way of the workers' output and errors, with real processes.

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zlib.h>

#include <catch2/catch.hpp>
#include <cerrno>
#include <cstdlib>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "agent/agent.h"
#include "tools/base/clock.h"
#include "tools/base/files.h"
#include "tools/base/testing/status_testing.h"
#include "tools/base/testing/temp_dir.h"
#include "tools/base/unique_fd.h"

namespace convene::agent {
namespace {

// Writes to log files never come back: the process that has it is one of a test, and ends with it.
int NeverComesBack(FileOp op, const std::string& path) {
  if (op == FileOp::kWrite && path.find(".log") != std::string::npos) {
    while (true) pause();
  }
  return 0;
}

// Prints `bytes` as lines of a usual length: the cases that use it fill queues, and lines of two
// bytes would cost seconds under a sanitizer.
std::string Chatter(int bytes) {
  return absl::StrCat("yes ", std::string(63, 'y'), " | head -c ", bytes, "; ");
}

struct Fixture {
  Fixture() {
    options.hello.job_id = "job";
    options.hello.host = "node0";
    options.hello.local_world_size = 2;
    options.endpoint = "localhost:0";
    options.may_host = true;
    options.store_host = "127.0.0.1";
    options.log.directory = directory.File("logs");
    options.extra_environment = {{"TEST_DIR", directory.path()}};
  }
  // Runs the agent in a process of its own; its exit code.
  int Run(const std::string& script, const ScopedFileFault::Hook& fault = nullptr) {
    options.command = {"sh", "-c", script};
    const pid_t pid = fork();
    REQUIRE(pid >= 0);
    if (pid == 0) {
      alarm(60);
      Redirect("out", STDOUT_FILENO);
      Redirect("err", STDERR_FILENO);
      std::unique_ptr<ScopedFileFault> faults;
      if (fault != nullptr) faults = std::make_unique<ScopedFileFault>(fault);
      const Result result = RunAgent(options);
      faults.release();  // A thread may be in it.
      WriteFileAtomic(directory.File("explanation"), result.explanation).IgnoreError();
      _exit(result.exit_code);
    }
    int status = 0;
    REQUIRE(waitpid(pid, &status, 0) == pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
  }
  std::string Read(const std::string& name) {
    const auto content = ReadFile(directory.File(name));
    return content.ok() ? *content : absl::StrCat("<no ", name, ">");
  }
  // The workers' lines on the console's stdout; the agent's own lines begin with their time.
  std::string Out() {
    std::string lines;
    for (const absl::string_view line : absl::StrSplit(Read("out"), '\n', absl::SkipEmpty())) {
      if (!absl::StartsWith(line, "[20")) absl::StrAppend(&lines, line, "\n");
    }
    return lines;
  }
  // Of the only run.
  std::string Log(const std::string& name) {
    const auto runs = ListDirectory(directory.File("logs"));
    REQUIRE_OK(runs);
    REQUIRE(runs->size() == 1);
    return Read(absl::StrCat("logs/", runs->front(), "/", name));
  }
  void Redirect(const std::string& name, int fd) {
    const UniqueFd file(open(directory.File(name).c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600));
    dup2(file.get(), fd);
  }

  testing::TempDir directory;
  AgentOptions options;
};

TEST_CASE_METHOD(Fixture, "redirected, teed and plain streams go where torchrun sends them") {
  options.log.redirects.by_local_rank = {{0, Streams::kStdout}};
  options.log.tee.by_local_rank = {{1, Streams::kStderr}};
  options.log.prefix_template = "[${role_name}${local_rank}]:";
  options.log.prefix_all = false;
  options.hello.role = "trainer";
  CHECK(Run("echo out $RANK; echo err $RANK >&2") == 0);
  CHECK(Out() == "out 1\n");
  CHECK_THAT(Read("err"), Catch::Contains("\nerr 0\n") || Catch::StartsWith("err 0\n"));
  CHECK_THAT(Read("err"), Catch::Contains("[trainer1]:err 1\n"));
  CHECK(Log("attempt_0/0/stdout.log") == "out 0\n");
  CHECK(Log("attempt_0/1/stderr.log") == "err 1\n");
  CHECK_THAT(Log("attempt_0/0/stderr.log"), Catch::StartsWith("<no "));
  CHECK_THAT(Log("attempt_0/1/stdout.log"), Catch::StartsWith("<no "));
}

TEST_CASE_METHOD(Fixture,
                 "a rank that is not shown writes its files only, filtered lines have one") {
  options.log.tee.others = Streams::kStdout;
  options.log.shown_local_ranks = {1};
  options.log.stdout_filters = {"apple", "pear"};
  CHECK(Run("echo an apple of $RANK; echo a plum; echo pears; echo hidden >&2") == 0);
  CHECK(Out() == "[1] an apple of 1\n[1] a plum\n[1] pears\n");
  CHECK_THAT(Read("err"), Catch::Contains("[1] hidden\n") && !Catch::Contains("[0] hidden\n"));
  CHECK(Log("attempt_0/0/stdout.log") == "an apple of 0\na plum\npears\n");
  CHECK(Log("attempt_0/filtered_stdout.log") == "[1] an apple of 1\n[1] pears\n");
}

TEST_CASE_METHOD(Fixture, "no epoch writes into another one's files") {
  options.log.redirects.others = Streams::kBoth;
  options.hello.max_restarts = 2;
  // Neither is stopped for the other's sake before it has spoken.
  CHECK(Run("count=$TORCHELASTIC_RESTART_COUNT; echo count $count; touch $TEST_DIR/$count.$RANK; "
            "until [ -e $TEST_DIR/$count.0 ] && [ -e $TEST_DIR/$count.1 ]; do sleep 0.01; done; "
            "exit $((2 - count))") == 0);
  for (int i = 0; i < 3; ++i) {
    CHECK(Log(absl::StrCat("attempt_", i, "/1/stdout.log")) == absl::StrCat("count ", i, "\n"));
  }
}

TEST_CASE_METHOD(Fixture, "files have a cap, and no line is torn or lost") {
  options.hello.local_world_size = 1;
  options.log.redirects.others = Streams::kBoth;
  options.log.max_file_bytes = 100'000;
  options.log.max_old_files = 9;
  CHECK(Run("seq 1 100000") == 0);
  std::string all = Log("attempt_0/0/stdout.log");
  CHECK(all.size() <= 100'000);
  for (int number = 1; number <= 9; ++number) {
    const auto runs = ListDirectory(directory.File("logs"));
    const std::string path = directory.File(
        absl::StrCat("logs/", runs->front(), "/attempt_0/0/stdout.log.", number, ".gz"));
    gzFile file = gzopen(path.c_str(), "rb");
    if (file == nullptr) break;
    std::string part(200'000, '\0');
    part.resize(gzread(file, part.data(), part.size()));
    gzclose(file);
    all = part + all;
  }
  std::string expected;
  for (int i = 1; i <= 100000; ++i) absl::StrAppend(&expected, i, "\n");
  CHECK((all == expected));
}

TEST_CASE_METHOD(Fixture, "a log disk that hangs stops neither the workers nor the end") {
  options.log.tee.others = Streams::kBoth;
  // 4 MB each: more than any queue or pipe holds.
  const MonotonicTime begin = Clock::Real().Now();
  CHECK(Run(Chatter(4'000'000) + "echo done $RANK >&2", NeverComesBack) == 0);
  CHECK(Clock::Real().Now() - begin < absl::Seconds(15));
  CHECK_THAT(Read("err") + Read("out"), Catch::Contains("[0] done 0\n") &&
                                            Catch::Contains("[1] done 1\n") &&
                                            Catch::Contains("the log disk hangs"));
}

TEST_CASE_METHOD(Fixture, "a full log disk stops no worker, and is told once a file") {
  options.log.redirects.others = Streams::kStdout;
  const auto full = [](FileOp op, const std::string& path) {
    return op == FileOp::kWrite && path.find(".log") != std::string::npos ? ENOSPC : 0;
  };
  CHECK(Run(Chatter(3'000'000) + "echo done $RANK >&2", full) == 0);
  const std::string err = Read("err") + Read("out");
  CHECK_THAT(err, Catch::Contains("[0] done 0\n") && Catch::Contains("[1] done 1\n"));
  const size_t told = err.find("0/stdout.log: No space left on device");
  CHECK(told != std::string::npos);
  CHECK(err.find("0/stdout.log: No space left on device", told + 1) == std::string::npos);
}

TEST_CASE_METHOD(Fixture, "the person is told what the first failure recorded and said on stderr") {
  options.log.directory = "";
  setenv("TMPDIR", directory.path().c_str(), 1);
  setenv("TORCHELASTIC_ERROR_FILE", directory.File("own.json").c_str(), 1);
  CHECK(Run("echo chatter; [ $RANK = 0 ] && exec sleep 600; echo disk on fire >&2; "
            "echo '{\"message\": {\"message\": \"RuntimeError: boom\", \"extraInfo\": "
            "{\"timestamp\": \"7\"}}}' > $TORCHELASTIC_ERROR_FILE; exit 3") == 1);
  unsetenv("TORCHELASTIC_ERROR_FILE");
  unsetenv("TMPDIR");
  const std::string explanation = Read("explanation");
  CHECK_THAT(explanation,
             Catch::Contains("rank 1 (local rank 1") && Catch::Contains("on node0: exit code 3") &&
                 Catch::Contains("Its error file " + directory.File("convene_logs_")) &&
                 Catch::Contains("/attempt_0/1/error.json says:\n  RuntimeError: boom") &&
                 Catch::Contains("Its last lines:\n  disk on fire") && !Catch::Contains("chatter"));
  CHECK(explanation.find("RuntimeError: boom", explanation.find("boom") + 4) == std::string::npos);
  CHECK_THAT(Read("own.json"),
             Catch::Contains("RuntimeError: boom") && Catch::Contains("\"errorCode\":3"));
}

TEST_CASE_METHOD(Fixture, "an error that a peer recorded before the first one to end is told") {
  CHECK(Run("record() { echo \"{\\\"message\\\": \\\"$1\\\", \\\"timestamp\\\": $2}\" "
            "> $TORCHELASTIC_ERROR_FILE; }; "
            "if [ $RANK = 1 ]; then record 'the first cause' 100; touch $TEST_DIR/recorded; "
            "exec sleep 600; fi; "
            "until [ -e $TEST_DIR/recorded ]; do :; done; record 'peer is gone' 200; exit 1") == 1);
  CHECK_THAT(Read("explanation"),
             Catch::Contains("local rank 1 recorded an error before it: the first cause\n"
                             "  peer is gone"));
}

TEST_CASE_METHOD(Fixture,
                 "a failed job ends with the first failed worker's code when that is asked") {
  options.propagate_exit_code = true;
  CHECK(Run("[ $RANK = 0 ] && exec sleep 600; exit 42") == 42);
  CHECK(Run("[ $RANK = 0 ] && exec sleep 600; kill -SEGV $$") == 128 + SIGSEGV);
  CHECK(Run("exit 0") == 0);
}

TEST_CASE_METHOD(Fixture,
                 "a log directory that cannot be used is bad usage, said before the start") {
  REQUIRE_OK(WriteFileAtomic(directory.File("logs"), "a file"));
  CHECK(Run("touch $TEST_DIR/started") == 64);
  CHECK_THAT(Read("explanation"),
             Catch::Contains("The log directory " + directory.File("logs") + " cannot be used"));
  CHECK_FALSE(ReadFile(directory.File("started")).ok());
}

}  // namespace
}  // namespace convene::agent

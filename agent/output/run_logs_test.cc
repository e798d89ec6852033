#include "agent/output/run_logs.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "tools/base/files.h"
#include "tools/base/testing/status_testing.h"
#include "tools/base/testing/temp_dir.h"

namespace convene::agent {
namespace {

struct Fixture {
  Fixture() {
    options.run_id = "team/run";
    options.local_world_size = 2;
    options.log.directory = directory.File("logs");
    options.on_relief = [] {};
    options.on_say = options.on_trouble = [this](const std::string& line) { said.push_back(line); };
  }
  RunLogs& Logs() {
    if (logs == nullptr) logs = std::make_unique<RunLogs>(loop, options);
    return *logs;
  }
  // The only entry of `parent`.
  static std::string Only(const std::string& parent) {
    const auto names = ListDirectory(parent);
    REQUIRE_OK(names);
    REQUIRE(names->size() == 1);
    return parent + "/" + names->front();
  }
  void Record(int local_rank, const std::string& json) {
    REQUIRE_OK(WriteFileAtomic(logs->ErrorFile(local_rank), json));
  }

  testing::TempDir directory;
  EventLoop loop;
  RunLogs::Options options;
  std::vector<std::string> said;
  std::unique_ptr<RunLogs> logs;
};

TEST_CASE_METHOD(Fixture,
                 "each epoch has a folder of its own, even when the daemon repeats a number") {
  options.log.tee.others = Streams::kBoth;
  for (const int attempt : {3, 3, 7}) REQUIRE_OK(Logs().BeginEpoch(attempt));
  const auto attempts = ListDirectory(Only(options.log.directory));
  REQUIRE_OK(attempts);
  CHECK(*attempts == std::vector<std::string>{"attempt_3", "attempt_4", "attempt_7"});
  REQUIRE(said.size() == 1);
  CHECK(said[0] == "logs of this run: " + Only(options.log.directory));
  CHECK_THAT(said[0], Catch::Contains("/logs/team_run_"));
  CHECK(Logs().ErrorFile(1) == Only(options.log.directory) + "/attempt_7/1/error.json");
}

TEST_CASE_METHOD(Fixture,
                 "without --log-dir a folder that only this user can read is made and told") {
  setenv("TMPDIR", directory.path().c_str(), 1);
  options.log.directory = "";
  options.log.redirects.others = Streams::kStderr;
  REQUIRE_OK(Logs().BeginEpoch(0));
  unsetenv("TMPDIR");
  struct stat info;
  REQUIRE(stat(Only(directory.path()).c_str(), &info) == 0);
  CHECK((info.st_mode & 0777) == 0700);
  CHECK(said.size() == 1);
  CHECK(Logs().Finish(absl::Seconds(20), false));
  CHECK_THAT(said[0], Catch::Contains(Only(Only(directory.path()))));
}

TEST_CASE_METHOD(Fixture,
                 "with no log at all there are error files still, which go when nobody is told") {
  const bool keeps_errors = GENERATE(false, true);
  setenv("TMPDIR", directory.path().c_str(), 1);
  options.log.directory = "";
  REQUIRE_OK(Logs().BeginEpoch(0));
  unsetenv("TMPDIR");
  Record(1, R"({"message": "boom"})");
  const std::map<int, ErrorRecord> records = Logs().ReadErrors();
  REQUIRE(records.size() == 1);
  CHECK(Logs().Finish(absl::Seconds(20), keeps_errors));
  CHECK(ReadFile(records.at(1).path).ok() == keeps_errors);
  CHECK(ListDirectory(directory.path())->empty() == !keeps_errors);
  CHECK(said.empty());
}

TEST_CASE_METHOD(Fixture, "the next run removes the error files of a killed one, and no others") {
  setenv("TMPDIR", directory.path().c_str(), 1);
  options.log.directory = "";
  REQUIRE_OK(Logs().BeginEpoch(0));
  const std::string killed = Only(directory.path());
  logs.reset();
  CHECK(IsDirectory(killed));
  REQUIRE_OK(Logs().BeginEpoch(0));
  Record(1, R"({"message": "boom"})");
  CHECK(Logs().Finish(absl::Seconds(20), /*keeps_errors=*/true));
  const std::string kept = Only(directory.path());
  CHECK(kept != killed);
  logs.reset();
  REQUIRE_OK(Logs().BeginEpoch(0));
  const auto living = std::move(logs);
  REQUIRE_OK(Logs().BeginEpoch(0));
  CHECK(Logs().Finish(absl::Seconds(20), /*keeps_errors=*/false));
  unsetenv("TMPDIR");
  CHECK(ListDirectory(directory.path())->size() == 2);
  CHECK(IsDirectory(kept));
  CHECK(ReadFile(kept + "/lock").status().code() == absl::StatusCode::kNotFound);
}

TEST_CASE_METHOD(Fixture, "a worker that changes its directory finds its error file") {
  REQUIRE(chdir(directory.path().c_str()) == 0);
  options.log.directory = "logs";
  REQUIRE_OK(Logs().BeginEpoch(0));
  CHECK(chdir("/") == 0);
  Record(1, R"({"message": "it broke"})");
  CHECK(Logs().ErrorFile(1) == Only(directory.File("logs")) + "/attempt_0/1/error.json");
}

TEST_CASE_METHOD(Fixture, "a log directory that cannot be one is refused before anything runs") {
  REQUIRE_OK(WriteFileAtomic(directory.File("logs"), "a file"));
  CHECK_STATUS(Logs().BeginEpoch(0), absl::StatusCode::kInvalidArgument,
               absl::StrCat("The log directory ", directory.File("logs"), " cannot be used"));
}

TEST_CASE_METHOD(Fixture,
                 "later the workers run on without it, and write no error file into nothing") {
  REQUIRE_OK(Logs().BeginEpoch(0));
  REQUIRE_OK(RemoveTree(directory.File("logs")));
  REQUIRE_OK(WriteFileAtomic(directory.File("logs"), "a file"));
  CHECK_OK(Logs().BeginEpoch(1));
  CHECK(Logs().ErrorFile(0).empty());
  REQUIRE(said.size() == 1);
  CHECK_THAT(said[0], Catch::Contains("the workers run on"));
}

TEST_CASE_METHOD(Fixture, "error files of any kind are read, or left out") {
  options.local_world_size = 5;
  REQUIRE_OK(Logs().BeginEpoch(0));
  Record(0, R"({"message": {"message": "boom", "extraInfo": {"timestamp": "7"}}})");
  Record(1, "not JSON");
  REQUIRE(mkfifo(Logs().ErrorFile(2).c_str(), 0600) == 0);
  Record(3, "{\"message\": \"" + std::string(2 << 20, 'x') + "\"}");
  const std::map<int, ErrorRecord> records = Logs().ReadErrors();
  REQUIRE(records.size() == 1);
  CHECK(records.at(0).lines == std::vector<std::string>{"boom"});
  CHECK(records.at(0).written < absl::InfiniteFuture());
}

TEST_CASE_METHOD(Fixture, "a record is handed on with the exit code; without one nothing is") {
  REQUIRE_OK(Logs().BeginEpoch(0));
  Record(1, R"({"message": {"message": "boom"}})");
  const std::string own = directory.File("own.json");
  Logs().HandOnError(0, 1, own);
  CHECK_FALSE(ReadFile(own).ok());
  Logs().HandOnError(1, -9, own);
  const auto content = ReadFile(own);
  REQUIRE_OK(content);
  CHECK_THAT(*content, Catch::Contains("boom") && Catch::Contains("\"errorCode\":-9"));
  Logs().HandOnError(1, 3, directory.File("no/such/own.json"));
  REQUIRE(said.size() == 1);
  CHECK_THAT(said[0], Catch::Contains("$TORCHELASTIC_ERROR_FILE is not written"));
}

TEST_CASE_METHOD(Fixture,
                 "both ranks' filtered lines share a file, console lines are not looked at") {
  options.log.tee.others = Streams::kStdout;
  options.log.stdout_filters = {"loss"};
  options.log.stderr_filters = {"loss"};
  REQUIRE_OK(Logs().BeginEpoch(0));
  const StreamOutput first = Logs().OutputOf(OutputStream::kStdout, {"default", 0, 4, "h"});
  const StreamOutput second = Logs().OutputOf(OutputStream::kStdout, {"default", 1, 5, "h"});
  CHECK(first.filtered != nullptr);
  CHECK(first.filtered == second.filtered);
  CHECK(first.file != second.file);
  CHECK(first.filters == options.log.stdout_filters);
  CHECK(Logs().OutputOf(OutputStream::kStderr, {"default", 0, 4, "h"}).filtered == nullptr);
}

}  // namespace
}  // namespace convene::agent

#include "launcher/kept_token.h"

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utime.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "tools/base/files.h"
#include "tools/base/logging.h"
#include "tools/base/testing/environment_table.h"
#include "tools/base/testing/status_testing.h"
#include "tools/base/testing/temp_dir.h"

namespace convene::launcher {
namespace {

constexpr char kFirst[] = "Xz3Vq0k7sT1mN8bYw5Jr2aPf";
constexpr char kSecond[] = "Pf3Vq0k7sT1mN8bYw5Jr2aXz";

void SetAge(const std::string& path, time_t seconds) {
  const time_t then = time(nullptr) - seconds;
  const utimbuf times = {then, then};
  REQUIRE(utime(path.c_str(), &times) == 0);
}

TEST_CASE("tokens are kept below the home directory, or where XDG_STATE_HOME says") {
  CHECK(KeptTokensFolder(testing::LookupIn({{"HOME", "/home/a"}})) ==
        "/home/a/.local/state/convene/tokens");
  CHECK(KeptTokensFolder(testing::LookupIn({{"HOME", "/home/a"}, {"XDG_STATE_HOME", "/s"}})) ==
        "/s/convene/tokens");
  // A relative path counts as none, as the specification wants it.
  CHECK(KeptTokensFolder(testing::LookupIn({{"HOME", "/home/a"}, {"XDG_STATE_HOME", "s"}})) ==
        "/home/a/.local/state/convene/tokens");
  CHECK(KeptTokensFolder(testing::LookupIn({})).empty());
}

TEST_CASE("a token is found by endpoint and by run, until its launch ends") {
  const testing::TempDir directory;
  const std::string folder = directory.path() + "/state.tmp.1/tokens";
  CHECK(*FindKeptToken(folder, "n1:20001", "") == std::nullopt);
  {
    const auto file = TokenFile::Keep(folder, {"n1:20001", "run7", kFirst});
    REQUIRE(file.ok());
    struct stat facts = {};
    REQUIRE(stat((folder + "/n1:20001").c_str(), &facts) == 0);
    CHECK((facts.st_mode & 0777) == 0600);
    CHECK((*FindKeptToken(folder, "n1:20001", "another run"))->token == kFirst);
    const auto by_run = *FindKeptToken(folder, "", "run7");
    REQUIRE(by_run.has_value());
    CHECK(by_run->endpoint == "n1:20001");
    CHECK(by_run->token == kFirst);
    CHECK(*FindKeptToken(folder, "", "run8") == std::nullopt);
    CHECK(*FindKeptToken(folder, "n2:20001", "run7") == std::nullopt);
    CHECK(*FindKeptToken(folder, "", "") == std::nullopt);
  }
  CHECK(*FindKeptToken(folder, "n1:20001", "run7") == std::nullopt);
  CHECK(ListDirectory(folder)->empty());
}

TEST_CASE("of two runs of one name the newer one's token is found, and of one endpoint the last") {
  const testing::TempDir directory;
  const std::string& folder = directory.path();
  auto older = TokenFile::Keep(folder, {"n1:20001", "run7", kFirst});
  const auto newer = TokenFile::Keep(folder, {"n2:20001", "run7", kSecond});
  SetAge(folder + "/n1:20001", 60);
  CHECK((*FindKeptToken(folder, "", "run7"))->endpoint == "n2:20001");
  auto again = TokenFile::Keep(folder, {"n1:20001", "run8", kSecond});
  CHECK((*FindKeptToken(folder, "n1:20001", ""))->token == kSecond);
  // The end of the first launch there leaves the second one's token.
  older->reset();
  CHECK((*FindKeptToken(folder, "n1:20001", ""))->run_id == "run8");
  again->reset();
  CHECK(*FindKeptToken(folder, "n1:20001", "") == std::nullopt);
}

TEST_CASE("a file of a launch that was killed on this machine is passed over") {
  const testing::TempDir directory;
  const std::string path = directory.path() + "/n1:20001";
  const pid_t gone = fork();
  REQUIRE(gone >= 0);
  if (gone == 0) _exit(0);
  REQUIRE(waitpid(gone, nullptr, 0) == gone);
  const std::string space = std::filesystem::read_symlink("/proc/self/ns/pid").string();
  const auto write = [&](const std::string& host, pid_t pid) {
    std::ofstream(path) << kFirst << "\nrun7\n" << host << " " << pid << "\n";
    REQUIRE(chmod(path.c_str(), 0600) == 0);
    CHECK(FindKeptToken(directory.path(), "n1:20001", "")->has_value() ==
          FindKeptToken(directory.path(), "", "run7")->has_value());
    return FindKeptToken(directory.path(), "", "run7")->has_value();
  };
  CHECK(write(HostName() + "/" + space, getpid()));
  CHECK_FALSE(write(HostName() + "/" + space, gone));
  CHECK(write("another-machine/" + space, gone));
  CHECK(write(HostName() + "/pid:[1]", gone));  // a container with the machine's name
}

TEST_CASE("a file that others may read, and one without a token, are told by name") {
  const testing::TempDir directory;
  const std::string path = directory.path() + "/n1:20001";
  const auto file = TokenFile::Keep(directory.path(), {"n1:20001", "run7", kFirst});
  REQUIRE(chmod(path.c_str(), 0644) == 0);
  CHECK_STATUS(FindKeptToken(directory.path(), "n1:20001", ""), absl::StatusCode::kPermissionDenied,
               path);
  REQUIRE(chmod(path.c_str(), 0600) == 0);
  std::ofstream(path) << kFirst;
  CHECK_STATUS(FindKeptToken(directory.path(), "n1:20001", ""), absl::StatusCode::kInvalidArgument,
               path);
  std::ofstream(path) << "short\nrun7\nhost 1\n";
  CHECK_STATUS(FindKeptToken(directory.path(), "n1:20001", ""), absl::StatusCode::kInvalidArgument,
               path);
}

TEST_CASE("the oldest of a thousand files make room") {
  const testing::TempDir directory;
  for (int i = 0; i < 1001; ++i) {
    const std::string path = absl::StrCat(directory.path(), "/n", i, ":1");
    std::ofstream(path) << kFirst << "\nrun\nhost 1\n";
    SetAge(path, 10000 - i);
  }
  const auto file = TokenFile::Keep(directory.path(), {"n1:20001", "run7", kFirst});
  CHECK(ListDirectory(directory.path())->size() == 1000);
  CHECK_FALSE(IsFile(directory.path() + "/n1:1"));
  CHECK(IsFile(directory.path() + "/n2:1"));
  CHECK(IsFile(directory.path() + "/n1:20001"));
}

TEST_CASE("without a place to keep it there is an error") {
  CHECK_STATUS(TokenFile::Keep("", {"n1:1", "run7", kFirst}), absl::StatusCode::kFailedPrecondition,
               "HOME");
  CHECK_FALSE(TokenFile::Keep("/proc/no/such", {"n1:1", "run7", kFirst}).ok());
}

}  // namespace
}  // namespace convene::launcher

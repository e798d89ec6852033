#include "rendezvous/lock/token.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tools/base/files.h"
#include "tools/base/testing/status_testing.h"
#include "tools/base/testing/temp_dir.h"
#include "tools/base/thread.h"
#include "tools/base/unique_fd.h"

namespace convene::rendezvous {
namespace {

constexpr char kToken[] = "Xz3Vq0k7sT1mN8bYw5Jr2aPf";

// A file of this mode with the content.
std::string Write(const testing::TempDir& directory, const std::string& content,
                  mode_t mode = 0600) {
  const std::string path = absl::StrCat(directory.path(), "/token");
  std::ofstream(path) << content;
  REQUIRE(chmod(path.c_str(), mode) == 0);
  return path;
}

int BytesIn(const UniqueFd& pipe) {
  int count = 0;
  REQUIRE(ioctl(pipe.get(), FIONREAD, &count) == 0);
  return count;
}

TEST_CASE("a token is one line of a file that nobody else reads") {
  const testing::TempDir directory;
  for (const char* const end : {"", "\n"}) {
    const auto token = ReadTokenFile(Write(directory, absl::StrCat(kToken, end)));
    REQUIRE_OK(token);
    CHECK(*token == kToken);
  }
  for (const mode_t mode : {0640, 0604, 0644}) {
    CHECK_STATUS(ReadTokenFile(Write(directory, kToken, mode)), absl::StatusCode::kPermissionDenied,
                 "chmod 600");
  }
  CHECK_STATUS(ReadTokenFile(directory.path() + "/none"), absl::StatusCode::kNotFound, "/none");
}

TEST_CASE("a token comes through a pipe, however late and in however many parts") {
  int ends[2];
  REQUIRE(pipe2(ends, O_CLOEXEC) == 0);
  const UniqueFd reader(ends[0]);
  UniqueFd writer(ends[1]);
  absl::StatusOr<std::string> token;
  std::atomic<bool> has_read = false;
  auto reading = Thread::Start("reader", [&] {
    token = ReadTokenFile(absl::StrCat("/dev/fd/", reader.get()));
    has_read = true;
  });
  REQUIRE_OK(reading);
  CHECK_OK(WriteAll(writer.get(), std::string(kToken, 5), "pipe"));
  while (BytesIn(reader) != 0 && !has_read) sched_yield();
  CHECK_OK(WriteAll(writer.get(), kToken + 5, "pipe"));
  writer.Reset();
  reading->Join();
  REQUIRE_OK(token);
  CHECK(*token == kToken);
}

TEST_CASE("what cannot be a token is refused without its content in the text") {
  const testing::TempDir directory;
  for (const std::string& content : std::vector<std::string>{
           "", "\n", "secretsecret", absl::StrCat("secret\n", kToken), absl::StrCat(kToken, " "),
           absl::StrCat(kToken, "\r\n"), absl::StrCat(kToken, "\n\n"), std::string(2000, 's')}) {
    INFO(content);
    const auto token = ReadTokenFile(Write(directory, content));
    CHECK_STATUS(token, absl::StatusCode::kInvalidArgument, "openssl rand -base64 32");
    CHECK(!absl::StrContains(token.status().message(), "secret"));
    CHECK(!absl::StrContains(token.status().message(), kToken));
  }
}

TEST_CASE("the variable is taken once, and its bytes are gone") {
  REQUIRE(setenv(kTokenVariable, kToken, 1) == 0);
  const char* const bytes = std::getenv(kTokenVariable);
  CHECK(TakeTokenVariable() == kToken);
  CHECK(std::getenv(kTokenVariable) == nullptr);
  CHECK(bytes[0] == '\0');
  CHECK(TakeTokenVariable().empty());
}

TEST_CASE("secrets that follow from a token") {
  CHECK(DeriveSecret(kToken, "a") == DeriveSecret(kToken, "a"));
  CHECK(DeriveSecret(kToken, "a") != DeriveSecret(kToken, "b"));
  CHECK(DeriveSecret(kToken, "a") != DeriveSecret("Xz3Vq0k7sT1mN8bYw5Jr2aPg", "a"));
  CHECK(DeriveSecret(kToken, "a").size() == 32);
  CHECK(ReadToken(kToken).size() == 32);
  CHECK(CheckToken(ReadToken(kToken), "test").ok());
  CHECK(SecretsEqual(kToken, kToken));
  CHECK(!SecretsEqual(kToken, ""));
  CHECK(!SecretsEqual("", kToken));
}

}  // namespace
}  // namespace convene::rendezvous

#include "worker_runtime/data/prepare/token_cache.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "tools/base/testing/status_testing.h"
#include "tools/base/testing/temp_dir.h"
#include "worker_runtime/data/prepare/prepare.h"
#include "worker_runtime/data/prepare/testing/letter_files.h"
#include "worker_runtime/data/store/file_lock.h"

namespace convene::worker {
namespace {

using convene::testing::TempDir;
using worker::testing::CacheOf;
using worker::testing::FilesWith;
using worker::testing::LetterOptions;
using worker::testing::Put;

constexpr absl::Duration kDay = absl::Hours(24);
const absl::Time kNow = absl::FromUnixSeconds(2000000000);
constexpr int64_t kMiB = 1 << 20;

CachedTokens Tokens(const std::string& path, int64_t bytes, absl::Duration unused) {
  return {.path = path, .bytes = bytes, .used = kNow - unused, .is_whole = true};
}

std::vector<std::string> Names(const std::vector<SurplusTokens>& surplus) {
  std::vector<std::string> names;
  for (const SurplusTokens& one : surplus) names.push_back(one.tokens.path + ": " + one.why);
  return names;
}

TEST_CASE("what nobody used for long goes, then the longest unused while all are too large") {
  const std::vector<CachedTokens> cache = {
      Tokens("old", 10 * kMiB, 31 * kDay), Tokens("a", 60 * kMiB, 20 * kDay),
      Tokens("b", 50 * kMiB, 10 * kDay), Tokens("c", 40 * kMiB, absl::Minutes(1))};
  CHECK(Names(SurplusOf(cache, {.bytes_max = 150 * kMiB}, kNow)) ==
        std::vector<std::string>{"old: not used for 31 days"});
  CHECK(Names(SurplusOf(cache, {.bytes_max = 149 * kMiB}, kNow)) ==
        std::vector<std::string>{"old: not used for 31 days",
                                 "a: the token files take 150 MiB and may take 149 MiB; it was not "
                                 "used for the longest time"});
  CHECK(SurplusOf(cache, {.bytes_max = 0}, kNow).size() == 4);
  CHECK(SurplusOf(cache, {.unused_max = absl::InfiniteDuration(), .bytes_max = 160 * kMiB}, kNow)
            .empty());
}

TEST_CASE("what is in use stays whatever the bounds, and a part that nobody goes on with goes") {
  CachedTokens in_use = Tokens("in use", 10 * kMiB, 99 * kDay);
  in_use.is_in_use = true;
  CachedTokens part = Tokens("part", kMiB, 25 * absl::Hours(1));
  part.is_whole = false;
  CachedTokens young = Tokens("young", kMiB, absl::Hours(23));
  young.is_whole = false;
  CHECK(Names(SurplusOf({in_use, part, young}, {.bytes_max = 11 * kMiB}, kNow)) ==
        std::vector<std::string>{"part: half made, and nobody has gone on with it for 25 hours"});
}

// Sets the time of a file's last use and writing to long ago.
void Age(const std::string& path) {
  const timespec long_ago[2] = {{1000000000, 0}, {1000000000, 0}};
  REQUIRE(utimensat(AT_FDCWD, path.c_str(), long_ago, 0) == 0);
}

// A process that uses a token file until it is killed.
class User {
 public:
  explicit User(const std::string& path) {
    int ready[2];
    REQUIRE(pipe(ready) == 0);
    pid_ = fork();
    if (pid_ == 0) {
      const auto use = TokenFileUse::Begin(path);
      [[maybe_unused]] const ssize_t told = write(ready[1], use.ok() ? "y" : "n", 1);
      while (true) pause();
    }
    char answer = 0;
    REQUIRE(read(ready[0], &answer, 1) == 1);
    REQUIRE(answer == 'y');
    close(ready[0]);
    close(ready[1]);
  }
  ~User() { Kill(); }
  void Kill() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }

 private:
  pid_t pid_ = -1;
};

TEST_CASE("a new file makes an old one go, but not while any process uses it") {
  TempDir dir;
  const std::string cache = CacheOf(dir).directory;
  Put(dir.File("a.txt"), "aaa");
  Put(dir.File("b.txt"), "bb");
  Put(dir.File("c.txt"), "c");
  const auto make = [&](const std::string& name) {
    auto made = PrepareTokenFile(LetterOptions(dir, {name}), CacheOf(dir), nullptr);
    REQUIRE_OK(made);
    return made->path;
  };
  const std::string a = make("a.txt");
  User first(a);
  User second(a);
  Age(a);
  make("b.txt");
  CHECK(access(a.c_str(), F_OK) == 0);
  first.Kill();
  CHECK_FALSE(RemoveCachedTokens(a));
  second.Kill();
  make("c.txt");
  CHECK(access(a.c_str(), F_OK) != 0);
  CHECK(FilesWith(cache, a.substr(a.rfind('/') + 1)).empty());  // nor anything beside it
  CHECK(ListTokenCache(cache)->size() == 2);
  CHECK(make("a.txt") == a);  // it is made again when it is asked for
}

TEST_CASE("without a folder for token files a text is refused with the flag that names one") {
  const TempDir dir;
  Put(dir.File("a.txt"), "aaa");
  CHECK_STATUS(PrepareTokenFile(LetterOptions(dir, {"a.txt"}), {}, nullptr),
               absl::StatusCode::kFailedPrecondition, "--token-cache-dir");
}

TEST_CASE("using a file again makes it young") {
  TempDir dir;
  Put(dir.File("a.txt"), "aaa");
  const auto options = LetterOptions(dir, {"a.txt"});
  const std::string path = PrepareTokenFile(options, CacheOf(dir), nullptr)->path;
  Age(path);
  REQUIRE_OK(PrepareTokenFile(options, CacheOf(dir), nullptr));
  PruneTokenCache(CacheOf(dir).directory, {});
  CHECK(access(path.c_str(), F_OK) == 0);
}

TEST_CASE("what a dead process left goes after a day, and what a living one makes stays") {
  TempDir dir;
  const std::string cache = dir.path();
  const std::string dead = CachedTokenPath(cache, 1);
  const std::string living = CachedTokenPath(cache, 2);
  for (const std::string& path : {dead, living}) {
    for (const char* end : {".partial", ".partial.documents", ".journal", ".lock", ".x.tmp.7"}) {
      Put(path + end, "text");
      Age(path + end);
    }
  }
  Put(dir.File("tokens_mine.bin"), "not ours");
  Put(dir.File("tokens_0000000000000001.bingo"), "not ours");
  {
    const auto lock = FileLock::Take(living + ".lock", {.silence_max = absl::ZeroDuration()});
    REQUIRE_OK(lock);
    Age(living + ".lock");
    PruneTokenCache(cache, {});
    CHECK(FilesWith(cache, "0001.bin.").empty());
    CHECK(FilesWith(cache, "0002.bin.").size() == 5);
    CHECK(ListTokenCache(cache)->at(0).is_in_use);
  }
  PruneTokenCache(cache, {});
  CHECK(FilesWith(cache, "0002.bin.").empty());
  CHECK(FilesWith(cache, "tokens_").size() == 2);
}

TEST_CASE("the list tells size, source and use; a folder that is not there is empty") {
  TempDir dir;
  Put(dir.File("a.txt"), "aaa");
  const auto made = PrepareTokenFile(LetterOptions(dir, {"a.txt"}), CacheOf(dir), nullptr);
  REQUIRE_OK(made);
  const auto cache = ListTokenCache(CacheOf(dir).directory);
  REQUIRE_OK(cache);
  REQUIRE(cache->size() == 1);
  const CachedTokens& tokens = cache->front();
  CHECK(tokens.path == made->path);
  CHECK(tokens.is_whole);
  CHECK(tokens.is_in_use);
  CHECK(tokens.bytes >= 512);
  CHECK(absl::StrContains(tokens.source, "a.txt"));
  CHECK(ListTokenCache(dir.File("none"))->empty());
  CHECK(TokenCacheSurplus(dir.File("none"), {})->empty());
}

}  // namespace
}  // namespace convene::worker

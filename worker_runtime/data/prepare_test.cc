#include <fcntl.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tools/base/clock.h"
#include "tools/base/files.h"
#include "tools/base/testing/status_testing.h"
#include "tools/base/testing/temp_dir.h"
#include "tools/base/unique_fd.h"
#include "worker_runtime/data/prepare.h"
#include "worker_runtime/data/store/token_file.h"

namespace convene::worker {
namespace {

using convene::testing::TempDir;

void Put(const std::string& path, const std::string& text) {
  REQUIRE_OK(WriteFileAtomic(path, text));
}

PrepareOptions Options(const TempDir& dir, const std::vector<std::string>& patterns) {
  PrepareOptions options;
  for (const std::string& pattern : patterns) options.patterns.push_back(dir.File(pattern));
  options.cache_directory = dir.File("cache");
  return options;
}

// The text of a byte token file, "|" for the separator.
std::string TextOf(const std::string& path) {
  const auto file = TokenFile::Open(path);
  REQUIRE_OK(file);
  std::vector<int32_t> tokens((*file)->token_count());
  (*file)->Read(0, (*file)->token_count(), tokens.data());
  std::string text;
  for (const int32_t token : tokens) text += token == 0 ? '|' : static_cast<char>(token);
  return text;
}

std::vector<std::string> CacheFilesEndingIn(const TempDir& dir, const std::string& suffix) {
  std::vector<std::string> found;
  const std::vector<std::string> names = *ListDirectory(dir.File("cache"));
  for (const std::string& name : names) {
    if (absl::EndsWith(name, suffix)) found.push_back(name);
  }
  return found;
}

TEST_CASE("documents stand in pattern order, then sorted, each once, with a separator between") {
  TempDir dir;
  Put(dir.File("b.txt"), "bb");
  Put(dir.File("a.txt"), "a\xc3\xa9");
  Put(dir.File("empty.txt"), "");
  Put(dir.File("z.md"), "zz");
  const auto path = PrepareTokenFile(Options(dir, {"z.md", "*.txt", "a*"}));
  REQUIRE_OK(path);
  CHECK(TextOf(*path) == "zz|a\xc3\xa9|bb");
  CHECK((*TokenFile::Open(*path))->vocabulary_size() == 256);
}

TEST_CASE("a file's own name is no pattern") {
  TempDir dir;
  Put(dir.File("[1].txt"), "one");
  const auto path = PrepareTokenFile(Options(dir, {"[1].txt"}));
  REQUIRE_OK(path);
  CHECK(TextOf(*path) == "one");
}

TEST_CASE("the same files are prepared once, a changed one again") {
  TempDir dir;
  Put(dir.File("a.txt"), "first");
  int64_t done_bytes = 0, total_bytes = 0;
  PrepareOptions options = Options(dir, {"a.txt"});
  options.progress = [&](int64_t done, int64_t total) {
    done_bytes = done;
    total_bytes = total;
  };
  const auto first = PrepareTokenFile(options);
  REQUIRE_OK(first);
  CHECK(done_bytes == 5);
  CHECK(total_bytes == 5);
  done_bytes = 0;
  CHECK(*PrepareTokenFile(options) == *first);
  CHECK(done_bytes == 0);
  Put(dir.File("a.txt"), "later");
  const auto later = PrepareTokenFile(options);
  REQUIRE_OK(later);
  CHECK(*later != *first);
  CHECK(TextOf(*later) == "later");
}

TEST_CASE("bad sources are named") {
  TempDir dir;
  Put(dir.File("empty.txt"), "");
  REQUIRE_OK(MakeDirectories(dir.File("sub")));
  CHECK_STATUS(PrepareTokenFile(Options(dir, {})), absl::StatusCode::kInvalidArgument,
               "no pattern");
  CHECK_STATUS(PrepareTokenFile(Options(dir, {"none*.txt"})), absl::StatusCode::kNotFound,
               "no file matches '" + dir.File("none*.txt"));
  CHECK_STATUS(PrepareTokenFile(Options(dir, {"empty.txt"})), absl::StatusCode::kInvalidArgument,
               "all 1 files of");
  CHECK_STATUS(PrepareTokenFile(Options(dir, {"sub"})), absl::StatusCode::kInvalidArgument,
               "is not a file");
}

TEST_CASE("whichever operation fails, the error is told and nothing half-made is left") {
  TempDir dir;
  Put(dir.File("a.txt"), "text");
  Put(dir.File("b.txt"), "text");
  for (const int error : {ENOSPC, EACCES}) {
    for (int failing = 0;; ++failing) {
      INFO("operation " << failing);
      REQUIRE_OK(RemoveTree(dir.File("cache")));
      int op = 0;
      absl::StatusOr<std::string> path;
      {
        ScopedFileFault fault(
            [&](FileOp, const std::string&) { return op++ == failing ? error : 0; });
        path = PrepareTokenFile(Options(dir, {"?.txt"}));
      }
      if (op <= failing) {
        REQUIRE_OK(path);
        CHECK(failing > 8);
        break;
      }
      REQUIRE(path.status().code() == (error == ENOSPC ? absl::StatusCode::kResourceExhausted
                                                       : absl::StatusCode::kPermissionDenied));
      CHECK(CacheFilesEndingIn(dir, ".tmp").empty());
      const auto again = PrepareTokenFile(Options(dir, {"?.txt"}));
      REQUIRE_OK(again);
      CHECK(TextOf(*again) == "text|text");
    }
  }
}

TEST_CASE("a file that changes while it is read is refused") {
  TempDir dir;
  Put(dir.File("a.txt"), "text");
  bool changed = false;
  ScopedFileFault fault([&](FileOp op, const std::string& path) {
    if (op == FileOp::kOpen && path == dir.File("a.txt") && !std::exchange(changed, true)) {
      UniqueFd fd(open(path.c_str(), O_WRONLY | O_APPEND));
      CHECK(write(fd.get(), "!", 1) == 1);
    }
    return 0;
  });
  CHECK_STATUS(PrepareTokenFile(Options(dir, {"a.txt"})), absl::StatusCode::kFailedPrecondition,
               "a.txt changed while it was read");
  CHECK(CacheFilesEndingIn(dir, ".bin").empty());
}

TEST_CASE("of many processes exactly one makes the file, and all get it") {
  TempDir dir;
  Put(dir.File("a.txt"), std::string(3 << 20, 'x'));
  std::vector<pid_t> children;
  for (int i = 0; i < 6; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      PrepareOptions options = Options(dir, {"a.txt"});
      bool made = false;
      options.progress = [&](int64_t, int64_t) { made = true; };
      const auto path = PrepareTokenFile(options);
      const auto file = path.ok() ? TokenFile::Open(*path) : path.status();
      _exit(!file.ok() || (*file)->token_count() != 3 << 20 ? 2 : made);
    }
    children.push_back(child);
  }
  int makers = 0;
  for (const pid_t child : children) {
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    REQUIRE(WIFEXITED(status));
    REQUIRE(WEXITSTATUS(status) < 2);
    makers += WEXITSTATUS(status);
  }
  CHECK(makers == 1);
}

TEST_CASE("the wait for another process has an end") {
  TempDir dir;
  Put(dir.File("a.txt"), "text");
  PrepareOptions options = Options(dir, {"a.txt"});
  ManualClock clock;
  options.clock = &clock;
  const auto path = PrepareTokenFile(options);
  REQUIRE_OK(path);
  REQUIRE_OK(RemoveTree(*path));
  UniqueFd holder(open(absl::StrCat(*path, ".lock").c_str(), O_RDWR));
  REQUIRE(flock(holder.get(), LOCK_EX) == 0);
  CHECK_STATUS(PrepareTokenFile(options), absl::StatusCode::kDeadlineExceeded, ".bin.lock");
  holder.Reset();
  CHECK(*PrepareTokenFile(options) == *path);
}

TEST_CASE("a token file that was damaged in the cache is made again") {
  TempDir dir;
  Put(dir.File("a.txt"), "text");
  const auto path = PrepareTokenFile(Options(dir, {"a.txt"}));
  REQUIRE_OK(path);
  Put(*path, ReadFile(*path)->substr(0, 150));
  CHECK_STATUS(TokenFile::Open(*path), absl::StatusCode::kDataLoss, "150 bytes instead of 168");
  CHECK(*PrepareTokenFile(Options(dir, {"a.txt"})) == *path);
  CHECK(TextOf(*path) == "text");
}

}  // namespace
}  // namespace convene::worker

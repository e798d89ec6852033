#include "worker_runtime/data/prepare/sources.h"

#include <unistd.h>

#include <string>
#include <vector>

#include "tools/base/files.h"
#include "tools/base/testing/status_testing.h"
#include "tools/base/testing/temp_dir.h"

namespace convene::worker {
namespace {

using convene::testing::TempDir;
using Names = std::vector<std::string>;

void Put(const std::string& path) {
  REQUIRE_OK(MakeDirectories(ParentDirectory(path)));
  REQUIRE_OK(WriteFileAtomic(path, "text"));
}

// Without the folder's own name.
Names Expanded(const TempDir& dir, const std::string& pattern) {
  const auto paths = ExpandPattern(dir.File(pattern));
  REQUIRE_OK(paths);
  Names names;
  for (const std::string& path : *paths) names.push_back(path.substr(dir.path().size() + 1));
  return names;
}

TEST_CASE("two stars stand for folders of any depth, and for none") {
  const TempDir dir;
  for (const char* const name : {"d/1.txt", "d/x/2.txt", "d/x/y/3.txt", "d/x/y/3.md", "d/.h/4.txt",
                                 "d/[b]{1,2}/5.txt", "d/**/6.txt", "e/7.txt"}) {
    Put(dir.File(name));
  }
  const Names texts = {"d/**/6.txt", "d/1.txt", "d/[b]{1,2}/5.txt", "d/x/2.txt", "d/x/y/3.txt"};
  CHECK(Expanded(dir, "d/**/*.txt") == texts);
  CHECK(Expanded(dir, "[d]/**/*.txt") == texts);
  CHECK(Expanded(dir, "d/**/**/*.txt") == texts);
  CHECK(Expanded(dir, "**/[37].*") == Names{"d/x/y/3.md", "d/x/y/3.txt", "e/7.txt"});
  CHECK(Expanded(dir, "{d,e}/**/[17].txt") == Names{"d/1.txt", "e/7.txt"});
  CHECK(Expanded(dir, "d/**/y/*.txt") == Names{"d/x/y/3.txt"});
  // A folder is no file.
  CHECK(Expanded(dir, "d/x/**") == Names{"d/x/2.txt", "d/x/y/3.md", "d/x/y/3.txt"});
  CHECK(Expanded(dir, "d/x/**/*") == Expanded(dir, "d/x/**"));
  // Within a name they are one star.
  CHECK(Expanded(dir, "e/**7.txt") == Names{"e/7.txt"});
  CHECK_STATUS(ExpandPattern(dir.File("d/**/8.txt")), absl::StatusCode::kNotFound,
               "no file matches");
  for (const char* const pattern : {"none/**/*.txt", "none/*.txt"}) {
    CHECK_STATUS(ExpandPattern(dir.File(pattern)), absl::StatusCode::kNotFound, "no file matches");
  }
}

TEST_CASE("two stars enter each folder once, so that links lead round in no circle") {
  const TempDir dir;
  Put(dir.File("a/1.txt"));
  Put(dir.File("a/b/2.txt"));
  Put(dir.File("elsewhere/3.txt"));
  REQUIRE(symlink("..", dir.File("a/b/up").c_str()) == 0);
  REQUIRE(symlink("b", dir.File("a/also_b").c_str()) == 0);
  REQUIRE(symlink("../elsewhere", dir.File("a/out").c_str()) == 0);
  REQUIRE(symlink("nowhere", dir.File("a/broken").c_str()) == 0);
  CHECK(Expanded(dir, "a/**/*.txt") == Names{"a/1.txt", "a/also_b/2.txt", "a/out/3.txt"});
}

}  // namespace
}  // namespace convene::worker

#include "worker_runtime/tuning/choice_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cerrno>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tools/base/check.h"
#include "tools/base/files.h"
#include "tools/base/testing/logged_text.h"
#include "tools/base/testing/status_testing.h"
#include "tools/base/testing/temp_dir.h"
#include "tools/base/thread.h"
#include "worker_runtime/tuning/choice_table.h"

namespace convene::worker {
namespace {

using convene::testing::LoggedText;
using convene::testing::TempDir;

constexpr char kMachine[] = "a GPU";

ChoiceTable TableOf(const std::string& product, uint64_t algorithm) {
  ChoiceTable table(kMachine);
  table.Put(product, algorithm);
  return table;
}

TEST_CASE("what is kept is read by the next process, in a folder that is made for it") {
  const TempDir folder;
  const ChoiceFile file(folder.File("cache/tuning"), kMachine);
  CHECK(file.Read().size() == 0);
  REQUIRE_OK(file.Keep(TableOf("one", 1)));
  REQUIRE_OK(file.Keep(TableOf("two", 2)));
  REQUIRE_OK(file.Keep(TableOf("one", 3)));
  const ChoiceTable read = ChoiceFile(folder.File("cache/tuning"), kMachine).Read();
  CHECK(read.Find("one") == 3);
  CHECK(read.Find("two") == 2);
}

TEST_CASE("each machine has a file of its own") {
  const TempDir folder;
  const ChoiceFile file(folder.path(), kMachine);
  const ChoiceFile other(folder.path(), "another GPU");
  CHECK(file.path() != other.path());
  REQUIRE_OK(file.Keep(TableOf("one", 1)));
  CHECK(other.Read().size() == 0);
}

TEST_CASE("what is there already is not written again") {
  const TempDir folder;
  const ChoiceFile file(folder.path(), kMachine);
  REQUIRE_OK(file.Keep(TableOf("one", 1)));
  const ScopedFileFault fault([](FileOp op, const std::string&) {
    return op == FileOp::kWrite || op == FileOp::kRename ? EIO : 0;
  });
  CHECK_OK(file.Keep(TableOf("one", 1)));
  CHECK_FALSE(file.Keep(TableOf("one", 2)).ok());
  CHECK(file.Read().Find("one") == 1);
}

TEST_CASE("a file that is no table is set aside with one line, and a new one takes its place") {
  const TempDir folder;
  const ChoiceFile file(folder.path(), kMachine);
  const std::string whole = TableOf("one", 1).Encode();
  for (const std::string& content :
       {whole.substr(0, whole.size() / 2), std::string("x"), std::string(2 << 20, 'x'),
        ChoiceTable("another GPU").Encode()}) {
    CAPTURE(content.size());
    REQUIRE_OK(WriteFileAtomic(file.path(), content));
    {
      const LoggedText log;
      CHECK(file.Read().size() == 0);
      CHECK(log.CountOf("is not used") == 1);
      CHECK(log.CountOf(".refused, and the algorithms of products are timed anew") == 1);
      CHECK(file.Read().size() == 0);
      CHECK(log.CountOf("is not used") == 1);
    }
    CHECK(*ReadFile(file.path() + ".refused") == content);
    REQUIRE_OK(file.Keep(TableOf("one", 1)));
    CHECK(file.Read().Find("one") == 1);
  }
}

TEST_CASE("what is no plain file is set aside too, and nobody waits for it") {
  const TempDir folder;
  const ChoiceFile file(folder.path(), kMachine);
  const LoggedText log;
  REQUIRE(mkfifo(file.path().c_str(), 0600) == 0);
  CHECK(file.Read().size() == 0);
  REQUIRE(symlink("/dev/zero", file.path().c_str()) == 0);
  CHECK(file.Read().size() == 0);
  CHECK(log.CountOf("is not used") == 2);
  REQUIRE_OK(file.Keep(TableOf("one", 1)));
  CHECK(file.Read().Find("one") == 1);
}

TEST_CASE("a folder that cannot be made is an error of Keep, and no end of a training") {
  const TempDir folder;
  REQUIRE_OK(WriteFileAtomic(folder.File("file"), ""));
  const ChoiceFile file(folder.File("file/tuning"), kMachine);
  CHECK_FALSE(file.Keep(TableOf("one", 1)).ok());
}

TEST_CASE("what many keep at the same time is all there") {
  const TempDir folder;
  {
    std::vector<Thread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back("keeper", [&folder, i] {
        const ChoiceFile file(folder.path(), kMachine);
        for (int k = 0; k < 3; ++k) {
          CONVENE_CHECK(file.Keep(TableOf(absl::StrCat("product ", i, " ", k), 1)).ok());
        }
      });
    }
    for (Thread& thread : threads) thread.Join();
  }
  CHECK(ChoiceFile(folder.path(), kMachine).Read().size() == 12);
}

}  // namespace
}  // namespace convene::worker

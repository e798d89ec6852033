#include "rendezvous/journal/incident_files.h"

#include <sys/stat.h>

#include <string>

#include "rendezvous/quorum/chronicle.h"
#include "tools/base/files.h"
#include "tools/base/testing/status_testing.h"
#include "tools/base/testing/temp_dir.h"

namespace convene::rendezvous {
namespace {

IncidentView Numbered(int64_t number) {
  return {.number = number,
          .epoch = Epoch(5),
          .verdict = "code",
          .cause = "rank 1 on b: exit code 1",
          .time = absl::FromUnixMicros(1'700'000'000'000'001),
          .certainty = "sure",
          .evidence = {"its words: Traceback"},
          .host = "b",
          .failures = {{.global_rank = 1, .host = "b", .exit_code = 1, .why = "exit code 1"}},
          .places = {"rank 1 on b: step 17, step"},
          .outcome = "epoch 6 formed",
          .times_here = 3};
}

struct Fixture {
  testing::TempDir directory;
  const std::string folder = directory.File("incidents");
  IncidentFiles files{folder};
};

TEST_CASE_METHOD(Fixture, "what was written is read again, whole and in order") {
  CHECK(files.Read("run")->empty());
  REQUIRE_OK(WriteFileAtomic(directory.File("file"), "no folder"));
  CHECK_FALSE(IncidentFiles(directory.File("file")).Read("run").ok());
  REQUIRE_OK(files.Write("run", Numbered(10)));
  REQUIRE_OK(files.Write("run", Numbered(9)));
  const auto found = IncidentFiles(folder).Read("run");
  REQUIRE_OK(found);
  const std::vector<IncidentView>& read = *found;
  REQUIRE(read.size() == 2);
  CHECK(read[0].number == 9);
  const IncidentView& there = read[1];
  CHECK(there.number == 10);
  CHECK(there.epoch == Epoch(5));
  CHECK(there.verdict == "code");
  CHECK(there.cause == "rank 1 on b: exit code 1");
  CHECK(there.time == absl::FromUnixMicros(1'700'000'000'000'001));
  CHECK(there.certainty == "sure");
  CHECK(there.evidence == std::vector<std::string>{"its words: Traceback"});
  CHECK(there.host == "b");
  REQUIRE(there.failures.size() == 1);
  CHECK(there.failures[0].why == "exit code 1");
  CHECK(there.places.size() == 1);
  CHECK(there.outcome == "epoch 6 formed");
  CHECK(there.times_here == 3);
}

TEST_CASE_METHOD(Fixture, "workers' words are for the daemon's user alone") {
  REQUIRE(mkdir(folder.c_str(), 0755) == 0);  // of a daemon from before that rule
  REQUIRE_OK(files.Write("run", Numbered(1)));
  struct stat facts = {};
  REQUIRE(stat(folder.c_str(), &facts) == 0);
  CHECK((facts.st_mode & 0777) == 0700);
}

TEST_CASE_METHOD(Fixture, "runs do not mix, whatever their ids are") {
  const std::string long_id(256, '/');
  for (const std::string& id : {std::string("run"), std::string("run.1"), std::string("a/../b"),
                                std::string("a_.._b"), long_id}) {
    REQUIRE_OK(files.Write(id, Numbered(1)));
    CHECK(files.Read(id)->size() == 1);
  }
  CHECK(ListDirectory(folder)->size() == 5);
  CHECK_OK(files.Forget("a/../b"));
  CHECK(files.Read("a/../b")->empty());
  CHECK(files.Read("a_.._b")->size() == 1);
}

TEST_CASE_METHOD(Fixture, "reports that may still stand are not called forgotten") {
  CHECK_OK(files.Forget("run"));  // no folder: nothing stands
  REQUIRE_OK(WriteFileAtomic(directory.File("file"), "no folder"));
  CHECK_FALSE(IncidentFiles(directory.File("file")).Forget("run").ok());
  // A report that cannot be removed keeps no other one.
  REQUIRE_OK(MakeDirectories(folder + "/" + IncidentName("run", 1)));
  REQUIRE_OK(files.Write("run", Numbered(2)));
  CHECK_FALSE(files.Forget("run").ok());
  CHECK(files.Read("run")->empty());
  REQUIRE_OK(RemoveTree(folder + "/" + IncidentName("run", 1)));
  CHECK_OK(files.Forget("run"));
}

TEST_CASE_METHOD(Fixture, "a run has 32 files at most, and a damaged one is left out") {
  for (int64_t number = 1; number <= 40; ++number) REQUIRE_OK(files.Write("run", Numbered(number)));
  const auto names = ListDirectory(folder);
  REQUIRE_OK(names);
  CHECK(names->size() == Chronicle::kMostIncidents);
  CHECK(files.Read("run")->front().number == 9);
  REQUIRE_OK(WriteFileAtomic(folder + "/" + names->front(), "{"));
  CHECK(files.Read("run")->size() == Chronicle::kMostIncidents - 1);
  // The daemon did not know of those from before, and gave a number above all that they may have.
  REQUIRE_OK(files.Write("other", Numbered(1)));
  for (const int64_t number : {200, 201}) REQUIRE_OK(files.Write("run", Numbered(number)));
  CHECK(ListDirectory(folder)->size() == Chronicle::kMostIncidents + 1);
  CHECK(files.Read("run")->front().number == 11);
  CHECK(files.Read("other")->size() == 1);
}

}  // namespace
}  // namespace convene::rendezvous

#include "rendezvous/journal/file_journal.h"

#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "rendezvous/journal/record_wire.h"
#include "tools/base/files.h"
#include "tools/base/testing/manual_clock.h"
#include "tools/base/testing/status_testing.h"
#include "tools/base/testing/temp_dir.h"

namespace convene::rendezvous {
namespace {

JobRecord RunningJob(const std::string& id, int epoch) {
  JobRecord record;
  record.founder.job_id = id;
  record.founder.host = "a";
  record.founder.nodes_max = 4;
  record.founder.max_restarts = 3;
  record.founder.last_call = absl::Seconds(7);
  record.phase = Phase::kStopping;
  record.floor = Epoch(2);
  record.epoch = record.highest_epoch = Epoch(epoch);
  MemberRecord member;
  member.host = "b";
  member.incarnation = Incarnation(0xFFFFFFFFFFFFFFFF);
  member.node_rank = 5;
  member.local_world_size = 8;
  member.role = "trainer";
  member.lease = absl::Seconds(5);
  member.topology = "block1";
  member.seat = 3;
  member.group_rank = 1;
  member.first_global_rank = 16;
  member.first_role_rank = 4;
  member.role_world_size = 12;
  member.takes_part = false;
  member.succeeded = true;
  record.members = {member};
  record.assignment.store_host = "a";
  record.assignment.store_port = 4711;
  record.assignment.world_size = 24;
  record.assignment.attempt = 6;
  record.epoch_size = 3;
  record.succeeded_count = 2;
  record.budget.failure_count = 1;
  record.budget.failed_at = {record.taken_at - absl::Seconds(30)};
  record.budget.highest_step = 1700;
  record.budget.advanced = true;
  record.budget.stuck_count = 2;
  record.conduct.records[{"b", 5}] = {{{Epoch(epoch), record.taken_at - absl::Seconds(30)}},
                                      1,
                                      record.taken_at + absl::Seconds(20),
                                      "blamed"};
  record.conduct.last_failures = {{Epoch(epoch), "rank 3 on b", record.taken_at}};
  record.vain_epochs = 4;
  record.ran = absl::Seconds(90);
  record.cause = Cause::kFailure;
  record.cause_text = "rank 3 on b: exit code 1";
  record.failure.emplace();
  record.failure->global_rank = 3;
  record.failure->last_log_lines = {"last", "words"};
  record.stop_kind = StopKind::kCheckpoint;
  record.stop_why = "room for c";
  record.last_departure_was_leave = true;
  record.outcome = Outcome::kTimedOut;
  record.why = "waiting";
  return record;
}

// A record of a few bytes.
JobRecord SmallJob(int epoch) {
  JobRecord record;
  record.founder.job_id = "job";
  record.founder.host = "a";
  record.epoch = Epoch(epoch);
  return record;
}

// These tests break the file, not the disk, so the file may lie in memory.
[[maybe_unused]] const bool kInMemory =
    access("/dev/shm", W_OK) == 0 && setenv("TEST_TMPDIR", "/dev/shm", /*overwrite=*/1) == 0;

RecordChanges Change(const JobRecord& record) { return RecordChanges{{record}, {}}; }

struct Fixture {
  Journal::Opened Open(int64_t rewrite_bytes = 1 << 20) {
    auto opened = FileJournal::Open({directory.path(), rewrite_bytes});
    REQUIRE_OK(opened);
    return *std::move(opened);
  }
  std::string Content() {
    const auto content = ReadFile(path);
    REQUIRE_OK(content);
    return *content;
  }
  void Replace(const std::string& content) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << content;
  }
  absl::Status Refusal() { return FileJournal::Open({directory.path()}).status(); }

  testing::TempDir directory;
  const std::string path = directory.File("journal");
};

TEST_CASE_METHOD(Fixture, "every field of a record comes back") {
  const JobRecord record = RunningJob("job", 9);
  REQUIRE_OK(Open().journal->Append(Change(record)));
  const Journal::Opened again = Open();
  REQUIRE(again.jobs.size() == 1);
  CHECK(again.cut_bytes == 0);
  // Records that are equal on the wire are equal: all fields but one are packed by their own name.
  CHECK(ToWire(again.jobs[0], absl::UnixEpoch()).DebugString() ==
        ToWire(record, absl::UnixEpoch()).DebugString());
  const JobRecord& there = again.jobs[0];
  CHECK(there.phase == Phase::kStopping);
  CHECK(there.cause == Cause::kFailure);
  CHECK(there.stop_kind == StopKind::kCheckpoint);
  CHECK(there.outcome == Outcome::kTimedOut);
  CHECK(there.members[0].incarnation == Incarnation(0xFFFFFFFFFFFFFFFF));
  CHECK(there.founder.last_call == absl::Seconds(7));
}

absl::Time test_wall_time;

TEST_CASE_METHOD(Fixture, "a record is as old as the wall clock says, and never younger than new") {
  FileJournal::Options options{directory.path()};
  options.wall_now = [] { return test_wall_time; };
  test_wall_time = absl::FromUnixSeconds(1'800'000'000);
  REQUIRE_OK(FileJournal::Open(options)->journal->Append(Change(RunningJob("job", 9))));
  test_wall_time += absl::Hours(70);
  CHECK(FileJournal::Open(options)->jobs.at(0).age == absl::Hours(70));
  test_wall_time -= absl::Hours(100);
  CHECK(FileJournal::Open(options)->jobs.at(0).age == absl::ZeroDuration());
}

TEST_CASE_METHOD(Fixture, "the last record of a job counts, and a forgotten job is gone") {
  {
    const Journal::Opened opened = Open();
    REQUIRE_OK(opened.journal->Append({{RunningJob("a", 3), RunningJob("b", 3)}, {}}));
    REQUIRE_OK(opened.journal->Append({{RunningJob("a", 4)}, {"b", "never was"}}));
  }
  const Journal::Opened again = Open();
  REQUIRE(again.jobs.size() == 1);
  CHECK(again.jobs[0].epoch == Epoch(4));
}

TEST_CASE_METHOD(Fixture, "a last frame that is cut at any byte is cut off, and writing goes on") {
  Open().journal->Append(Change(SmallJob(3))).IgnoreError();
  const size_t whole = Content().size();
  Open().journal->Append(Change(SmallJob(4))).IgnoreError();
  const std::string content = Content();
  for (size_t length = whole; length < content.size(); ++length) {
    INFO("cut at " << length);
    Replace(content.substr(0, length));
    {
      const Journal::Opened opened = Open();
      REQUIRE(opened.jobs.at(0).epoch == Epoch(3));
      REQUIRE(opened.cut_bytes == static_cast<int64_t>(length - whole));
      REQUIRE_OK(opened.journal->Append(Change(SmallJob(5))));
    }
    REQUIRE(Open().jobs.at(0).epoch == Epoch(5));
  }
  // A power cut may leave a file that has its length and not its bytes.
  Replace(content.substr(0, whole) + std::string(content.size() - whole, '\0'));
  CHECK(Open().jobs.at(0).epoch == Epoch(3));
}

TEST_CASE_METHOD(Fixture, "a broken byte before a whole frame is refused, with the place") {
  Open().journal->Append(Change(SmallJob(3))).IgnoreError();
  const size_t first_end = Content().size();
  Open().journal->Append(Change(SmallJob(4))).IgnoreError();
  const std::string content = Content();
  const size_t first_begin = content.find('\n') + 1;
  for (size_t i = first_begin; i < first_end; ++i) {
    std::string damaged = content;
    damaged[i] ^= 0x10;
    Replace(damaged);
    INFO("byte " << i);
    CHECK_STATUS(Refusal(), absl::StatusCode::kDataLoss,
                 absl::StrCat(path, " is damaged at byte ", first_begin, " of ", content.size()));
  }
  CHECK_THAT(std::string(Refusal().message()), Catch::Contains("move the file away"));
}

TEST_CASE_METHOD(Fixture,
                 "a file of a newer convened is refused, and so is one that is no journal") {
  Open();
  Replace("convene-journal 2\nwhatever is new");
  CHECK_STATUS(Refusal(), absl::StatusCode::kFailedPrecondition,
               "has format 2, and this convened knows formats up to 1");
  for (const char* other : {"", "hello", "convene-journal x\n", "convene-journal 0\n"}) {
    Replace(other);
    CHECK_STATUS(Refusal(), absl::StatusCode::kDataLoss, "is no journal of convened");
  }
}

// The file was written by the first version of the format, which every later one has to read.
TEST_CASE_METHOD(Fixture, "a file of format 1 is read") {
  Open();
  Replace(absl::HexStringToBytes(
      "636f6e76656e652d6a6f75726e616c20310ac40000002452dbc2862fe9f70ac1010a250a036a6f6212016118"
      "ffffffffffffffffff01200128013004400348c0cf2450d8366088271003180220092809321b0a016211ffff"
      "ffffffffffff1805200828882730033801401050013a0c100120182a016130e7245006400348025001580460"
      "90bf056802721872616e6b2033206f6e20623a206578697420636f646520317a1c080310ffffffffffffffff"
      "ff0142046c6173744205776f726473480182010e0802120a726f6f6d20666f7220638801019001039a010777"
      "616974696e67"));
  const Journal::Opened opened = Open();
  REQUIRE(opened.jobs.size() == 1);
  JobRecord expected = RunningJob("job", 9);
  // The field came later, so it is absent.
  expected.members[0].topology.clear();
  expected.founder.role = expected.members[0].role = "default";
  expected.members[0].first_role_rank = expected.members[0].role_world_size = 0;
  expected.assignment.role_world_size = expected.assignment.world_size;
  expected.budget = {.failure_count = 1};
  expected.conduct = {};
  CHECK(ToWire(opened.jobs[0], absl::UnixEpoch()).DebugString() ==
        ToWire(expected, absl::UnixEpoch()).DebugString());
}

TEST_CASE_METHOD(Fixture, "a record that no daemon can have written is refused by name") {
  JobRecord record = RunningJob("job", 9);
  record.members.push_back(record.members[0]);
  Open().journal->Append(Change(record)).IgnoreError();
  CHECK_STATUS(Refusal(), absl::StatusCode::kDataLoss, "the record of job \"job\" makes no sense");
}

TEST_CASE_METHOD(Fixture, "two daemons never share a directory") {
  const Journal::Opened opened = Open();
  CHECK_STATUS(Refusal(), absl::StatusCode::kAlreadyExists,
               absl::StrCat("is in use by process ", getpid(), " on "));
}

// Daemons that take turns with one directory.
struct Turns {
  testing::TempDir directory;
  ManualClock clock;
  int lost = 0;

  absl::StatusOr<Journal::Opened> Try() {
    return FileJournal::Open(
        {.directory = directory.path(), .clock = &clock, .is_shared = true, .on_lost = [this] {
           ++lost;
         }});
  }
  Journal::Opened Open() {
    auto opened = Try();
    REQUIRE_OK(opened);
    return *std::move(opened);
  }
  // An NFS server forgets a machine that it did not hear, and its lock: here the file goes.
  void LoseLock() { REQUIRE_OK(RemoveTree(directory.File("lock"))); }
};

TEST_CASE("daemons take turns, each in a higher term, and one at a time") {
  Turns turns;
  {
    const Journal::Opened first = turns.Open();
    CHECK(first.tenure->term() == 1);
    CHECK_STATUS(turns.Try(), absl::StatusCode::kAlreadyExists, "is in use by process");
    REQUIRE_OK(first.journal->Append(Change(RunningJob("job", 9))));
  }
  const Journal::Opened second = turns.Open();
  CHECK(second.tenure->term() == 2);
  REQUIRE(second.jobs.size() == 1);
  CHECK(second.jobs[0].epoch == Epoch(9));
  CHECK_FALSE(IsFile(turns.directory.File("journal.1")));
  CHECK(IsFile(turns.directory.File("journal.2")));
  CHECK(turns.lost == 0);
}

TEST_CASE("a daemon that lost its lock decides nothing more, and harms no journal") {
  Turns turns;
  const Journal::Opened old = turns.Open();
  REQUIRE_OK(old.journal->Append(Change(RunningJob("job", 3))));
  turns.LoseLock();
  const Journal::Opened next = turns.Open();
  REQUIRE(next.jobs.size() == 1);
  for (int time = 1; time <= 2; ++time) {  // the second time it writes its file anew
    CHECK_STATUS(old.journal->Append(Change(RunningJob("job", 4))), absl::StatusCode::kAborted,
                 "another daemon has taken over");
    CHECK_FALSE(old.tenure->Covers(MonotonicTime()));
    CHECK(turns.lost == time);
  }
  REQUIRE_OK(next.journal->Append(Change(RunningJob("job", 5))));
  CHECK(next.tenure->Covers(MonotonicTime()));
  turns.LoseLock();
  const Journal::Opened last = turns.Open();
  CHECK(last.tenure->term() == 3);
  REQUIRE(last.jobs.size() == 1);
  CHECK(last.jobs[0].epoch == Epoch(5));
}

TEST_CASE("a daemon that writes nothing finds at its next look that another one leads") {
  Turns turns;
  const Journal::Opened old = turns.Open();
  REQUIRE_OK(old.journal->Look());
  turns.LoseLock();
  const Journal::Opened next = turns.Open();
  CHECK_STATUS(old.journal->Look(), absl::StatusCode::kAborted, "another daemon has taken over");
  CHECK_FALSE(old.tenure->Covers(MonotonicTime()));
  CHECK(turns.lost == 1);
  REQUIRE_OK(next.journal->Look());
  CHECK(next.tenure->Covers(MonotonicTime()));
}

TEST_CASE("a daemon that gets errors from its directory for a while lets another one lead") {
  Turns turns;
  const Journal::Opened opened = turns.Open();
  int error = EMFILE;
  const ScopedFileFault fault([&](FileOp op, const std::string& path) {
    return op == FileOp::kOpen && absl::EndsWith(path, "/term") ? error : 0;
  });
  const auto look_fails = [&] {
    CHECK_STATUS(opened.journal->Look(), absl::StatusCode::kResourceExhausted, "Too many open");
    CHECK(opened.tenure->Covers(MonotonicTime()));
  };
  look_fails();
  turns.clock.Advance(FileJournal::kMostBlind - absl::Milliseconds(1));
  look_fails();
  error = 0;
  REQUIRE_OK(opened.journal->Look());
  error = EMFILE;
  turns.clock.Advance(FileJournal::kMostBlind);
  look_fails();  // The one before was good.
  turns.clock.Advance(FileJournal::kMostBlind);
  CHECK_STATUS(opened.journal->Append(Change(RunningJob("job", 3))), absl::StatusCode::kAborted,
               "could not be looked into for 10s, and another daemon may lead: open");
  CHECK_FALSE(opened.tenure->Covers(MonotonicTime()));
  CHECK(turns.lost == 1);
}

TEST_CASE("a daemon of several whose disk is full sees that it leads, and waits for room") {
  Turns turns;
  const Journal::Opened opened = turns.Open();
  const ScopedFileFault full(
      [&](FileOp op, const std::string&) { return op == FileOp::kWrite ? ENOSPC : 0; });
  for (int i = 0; i < 5; ++i) {
    CHECK_STATUS(opened.journal->Append(Change(RunningJob("job", 3))),
                 absl::StatusCode::kResourceExhausted, "No space left");
    turns.clock.Advance(FileJournal::kMostBlind);
  }
  CHECK(opened.tenure->Covers(MonotonicTime()));
}

TEST_CASE("a term that ended before its file was there is passed over") {
  Turns turns;
  REQUIRE_OK(turns.Open().journal->Append(Change(RunningJob("job", 3))));
  REQUIRE_OK(WriteFileAtomic(turns.directory.File("term"), "7\n"));
  // Daemons that were killed or lost their lock left some of these, and a later one wrote one.
  for (const char* const name :
       {"journal.new", "journal.0", "journal.7.new", "journal.9", "journal.x"}) {
    REQUIRE_OK(WriteFileAtomic(turns.directory.File(name), "half"));
  }
  const Journal::Opened next = turns.Open();
  CHECK(next.tenure->term() == 8);
  CHECK(next.jobs.size() == 1);
  auto names = ListDirectory(turns.directory.path());
  REQUIRE_OK(names);
  std::sort(names->begin(), names->end());
  CHECK(*names == std::vector<std::string>{"journal.8", "journal.9", "journal.x", "lock", "term"});
}

TEST_CASE(
    "a daemon whose directory is hidden by another daemon's leads no more, and harms nothing") {
  const testing::TempDir parent;
  const std::string path = parent.File("state");
  const auto open = [&](int* lost) {
    const auto number = FileJournal::MakeDirectory(path);
    REQUIRE_OK(number);
    auto opened = FileJournal::Open({.directory = path,
                                     .is_shared = true,
                                     .on_lost = [lost] { ++*lost; },
                                     .directory_number = *number});
    REQUIRE_OK(opened);
    CHECK(opened->tenure->term() == 1);
    return *std::move(opened);
  };
  int real_lost = 0;
  int early_lost = 0;
  const Journal::Opened real = open(&real_lost);
  REQUIRE_OK(real.journal->Append(Change(RunningJob("job", 3))));
  // Another daemon began before this file system was mounted.
  REQUIRE_OK(RenameFile(path, parent.File("shared")));
  const Journal::Opened early = open(&early_lost);
  REQUIRE_OK(RenameFile(path, parent.File("hidden")));
  REQUIRE_OK(RenameFile(parent.File("shared"), path));
  for (int time = 1; time <= 2; ++time) {  // the second time it would write its file anew
    CHECK_STATUS(early.journal->Append(Change(RunningJob("job", 8))), absl::StatusCode::kAborted,
                 "is not the one that this daemon began with");
    CHECK_FALSE(early.tenure->Covers(MonotonicTime()));
    CHECK(early_lost == time);
  }
  REQUIRE_OK(real.journal->Append(Change(RunningJob("other", 4))));
  CHECK(real_lost == 0);
  const auto content = ReadFile(path + "/journal.1");
  REQUIRE_OK(content);
  CHECK_THAT(*content, Catch::Contains("other"));
}

TEST_CASE(
    "a directory that went for a while is not begun anew, nor is one that stands in its place") {
  const testing::TempDir parent;
  const std::string path = parent.File("state");
  const auto number = FileJournal::MakeDirectory(path);
  REQUIRE_OK(number);
  const FileJournal::Options options = {
      .directory = path, .is_shared = true, .directory_number = *number};
  REQUIRE_OK(FileJournal::Open(options));
  REQUIRE_OK(RenameFile(path, parent.File("away")));
  CHECK_STATUS(FileJournal::Open(options), absl::StatusCode::kNotFound, path);
  CHECK_FALSE(IsDirectory(path));
  REQUIRE_OK(MakeDirectories(path));
  CHECK_STATUS(FileJournal::Open(options), absl::StatusCode::kUnavailable,
               "is not the one that this daemon began with");
  CHECK(ListDirectory(path)->empty());
  REQUIRE_OK(RemoveTree(path));
  REQUIRE_OK(RenameFile(parent.File("away"), path));
  const auto again = FileJournal::Open(options);
  REQUIRE_OK(again);
  CHECK(again->tenure->term() == 2);
}

TEST_CASE("a directory of one daemon can be shared later, and not the other way round") {
  Turns turns;
  {
    auto alone = FileJournal::Open({.directory = turns.directory.path()});
    REQUIRE_OK(alone);
    CHECK(alone->tenure == nullptr);
    REQUIRE_OK(alone->journal->Append(Change(RunningJob("job", 3))));
  }
  CHECK(turns.Open().jobs.size() == 1);
  CHECK_STATUS(FileJournal::Open({.directory = turns.directory.path()}),
               absl::StatusCode::kFailedPrecondition, "start this one with --standby too");
  REQUIRE_OK(WriteFileAtomic(turns.directory.File("term"), "soon"));
  CHECK_STATUS(turns.Try(), absl::StatusCode::kDataLoss, "holds no number of a term");
}

TEST_CASE_METHOD(Fixture, "the file is written anew when most of it is history") {
  {
    const Journal::Opened opened = Open(4000);
    REQUIRE_OK(opened.journal->Append(Change(RunningJob("other", 1))));
    size_t longest = 0;
    for (int epoch = 1; epoch <= 200; ++epoch) {
      REQUIRE_OK(opened.journal->Append(Change(RunningJob("job", epoch))));
      longest = std::max(longest, Content().size());
    }
    CHECK(longest < 4600);
    CHECK(longest > 3600);
  }
  const Journal::Opened again = Open();
  REQUIRE(again.jobs.size() == 2);
  CHECK(again.jobs[0].epoch == Epoch(200));
  CHECK(again.jobs[1].epoch == Epoch(1));
}

TEST_CASE_METHOD(Fixture, "a disk without room for a rewritten journal still takes a record") {
  {
    const Journal::Opened opened = Open(1);
    REQUIRE_OK(opened.journal->Append(Change(RunningJob("job", 1))));
    for (int epoch = 2; epoch <= 20; ++epoch) {
      for (const FileOp full : {FileOp::kOpen, FileOp::kWrite, FileOp::kSync}) {
        const ScopedFileFault fault([&](FileOp op, const std::string& at) {
          return op == full && at == path + ".new" ? ENOSPC : 0;
        });
        REQUIRE_OK(opened.journal->Append(Change(RunningJob("job", epoch))));
        CHECK(opened.journal->is_current());
        CHECK_FALSE(IsFile(path + ".new"));
      }
    }
    const size_t longest = Content().size();
    REQUIRE_OK(opened.journal->Append(Change(RunningJob("job", 21))));
    CHECK(Content().size() < longest / 4);  // there is room again
  }
  const Journal::Opened again = Open();
  REQUIRE(again.jobs.size() == 1);
  CHECK(again.jobs[0].epoch == Epoch(21));
}

TEST_CASE_METHOD(Fixture,
                 "a disk that is full empties the file, and all is written when there is room") {
  for (const FileOp full : {FileOp::kWrite, FileOp::kSync, FileOp::kOpen, FileOp::kRename}) {
    {
      const Journal::Opened opened = Open();
      REQUIRE_OK(opened.journal->Append(Change(RunningJob("job", 3))));
      {
        bool first = true;
        const ScopedFileFault fault([&](FileOp op, const std::string&) {
          // The first Append meets the disk where it writes or syncs, the next where it rewrites.
          if (first) return op == FileOp::kWrite || op == FileOp::kSync ? ENOSPC : 0;
          return op == full ? ENOSPC : 0;
        });
        CHECK_STATUS(opened.journal->Append(Change(RunningJob("job", 4))),
                     absl::StatusCode::kResourceExhausted, "No space left on device");
        first = false;
        CHECK_FALSE(opened.journal->is_current());
        CHECK_FALSE(opened.journal->Append({{RunningJob("late", 1)}, {}}).ok());
      }
      CHECK(Content() == "convene-journal 1\n");
      CHECK_OK(opened.journal->Append({}));
      CHECK(opened.journal->is_current());
    }
    const Journal::Opened again = Open();
    REQUIRE(again.jobs.size() == 2);
    CHECK(again.jobs[0].epoch == Epoch(4));
    REQUIRE_OK(again.journal->Append({{}, {"late"}}));
  }
}

TEST_CASE_METHOD(Fixture,
                 "a file that may not grow leaves no old epoch for the next daemon to believe in") {
  rlimit before = {};
  REQUIRE(getrlimit(RLIMIT_FSIZE, &before) == 0);
  const auto previous = std::signal(SIGXFSZ, SIG_IGN);
  {
    const Journal::Opened opened = Open();
    REQUIRE_OK(opened.journal->Append(Change(RunningJob("job", 3))));
    rlimit tight = before;
    tight.rlim_cur = static_cast<rlim_t>(Content().size() + 40);  // in mid-record
    REQUIRE(setrlimit(RLIMIT_FSIZE, &tight) == 0);
    CHECK_FALSE(opened.journal->Append(Change(RunningJob("job", 4))).ok());
  }
  REQUIRE(setrlimit(RLIMIT_FSIZE, &before) == 0);
  std::signal(SIGXFSZ, previous);
  const Journal::Opened again = Open();
  CHECK(again.jobs.empty());
  CHECK(again.cut_bytes == 0);
}

TEST_CASE_METHOD(Fixture, "what is no file is refused, and not waited for") {
  const std::string state = directory.File("strange");
  const char* const name = GENERATE("journal", "lock");
  REQUIRE_OK(MakeDirectories(state));
  const std::string path = absl::StrCat(state, "/", name);
  SECTION("a FIFO") { REQUIRE(mkfifo(path.c_str(), 0600) == 0); }
  SECTION("a directory") { REQUIRE_OK(MakeDirectories(path)); }
  const absl::Status status = FileJournal::Open({state}).status();
  CHECK(absl::IsFailedPrecondition(status));
  CHECK_THAT(std::string(status.message()), Catch::Contains("is no regular file"));
}

TEST_CASE_METHOD(Fixture, "a directory that cannot be made is the person's to mend") {
  REQUIRE_OK(WriteFileAtomic(directory.File("file"), "x"));
  CHECK_FALSE(FileJournal::Open({directory.File("file") + "/state"}).ok());
}

}  // namespace
}  // namespace convene::rendezvous

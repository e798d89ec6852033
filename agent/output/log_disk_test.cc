#include "agent/output/log_disk.h"

#include <catch2/catch.hpp>
#include <cerrno>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tools/base/files.h"
#include "tools/base/mutex.h"
#include "tools/base/testing/status_testing.h"
#include "tools/base/testing/temp_dir.h"

namespace convene::agent {
namespace {

// A disk whose writes do what the test says, from the next one on.
class TestDisk {
 public:
  enum Mode { kWorks, kHangs, kFull };

  TestDisk()
      : fault_(
            [this](FileOp op, const std::string&) { return op == FileOp::kWrite ? Pass() : 0; }) {}
  ~TestDisk() {
    Set(kWorks);
    MutexLock lock(&mutex_);
    while (inside_ > 0) changed_.Wait(&mutex_);
  }
  void Set(Mode mode) {
    MutexLock lock(&mutex_);
    mode_ = mode;
    changed_.SignalAll();
  }
  // Until so many writes have begun.
  void WaitForWrites(int count) {
    MutexLock lock(&mutex_);
    while (begun_ < count) changed_.Wait(&mutex_);
  }

 private:
  int Pass() {
    MutexLock lock(&mutex_);
    ++begun_;
    ++inside_;
    changed_.SignalAll();
    while (mode_ == kHangs) changed_.Wait(&mutex_);
    --inside_;
    changed_.SignalAll();
    return mode_ == kFull ? ENOSPC : 0;
  }

  Mutex mutex_;
  CondVar changed_;
  Mode mode_ ABSL_GUARDED_BY(mutex_) = kWorks;
  int begun_ ABSL_GUARDED_BY(mutex_) = 0;
  int inside_ ABSL_GUARDED_BY(mutex_) = 0;
  ScopedFileFault fault_;
};

struct Fixture {
  Fixture() {
    LogDisk::Options options;
    options.on_relief = [] {};
    options.on_trouble = [this](const std::string& what) { troubles.push_back(what); };
    options.hangs_after = absl::Milliseconds(50);
    auto started = LogDisk::Start(loop, std::move(options));
    REQUIRE_OK(started);
    disk = *std::move(started);
    file = disk->Open({directory.File("logs/x.log")});
  }
  void RunUntil(const std::function<bool()>& done) {
    const MonotonicTime deadline = Clock::Real().Now() + absl::Seconds(20);
    while (!done()) {
      REQUIRE(Clock::Real().Now() < deadline);
      loop.RunOnce(deadline);
    }
  }
  bool Finish() { return disk->Finish(absl::Seconds(20)); }
  std::string Content() {
    const auto content = ReadFile(directory.File("logs/x.log"));
    return content.ok() ? *content : "";
  }

  testing::TempDir directory;
  TestDisk test_disk;
  EventLoop loop;
  std::vector<std::string> troubles;
  std::unique_ptr<LogDisk> disk;
  std::shared_ptr<LogDisk::File> file;
};

const std::string kBlock = std::string(1023, 'x') + "\n";  // NOLINT: a constant of a test

TEST_CASE_METHOD(Fixture, "what is appended is in the file when it has finished") {
  std::string all;
  for (int i = 0; i < 1000; ++i) {
    const std::string line = absl::StrCat("line ", i, "\n");
    disk->Append(file, line);
    all += line;
  }
  disk->Close(file);
  CHECK(Finish());
  CHECK(Content() == all);
  CHECK(troubles.empty());
  CHECK(disk->Loss().empty());
}

TEST_CASE_METHOD(Fixture, "a file that nothing is written to is not created") {
  disk->Close(file);
  CHECK(Finish());
  CHECK(Content().empty());
  CHECK_FALSE(ListDirectory(directory.File("logs")).ok());
}

TEST_CASE_METHOD(Fixture, "a writer waits for a slow disk, goes on with it, and nothing is lost") {
  test_disk.Set(TestDisk::kHangs);
  disk->Append(file, "first\n");
  test_disk.WaitForWrites(1);
  size_t appended = 6;
  for (size_t i = 0; i < LogDisk::kFull / kBlock.size(); ++i) {
    CHECK_FALSE(disk->MustWait(*file));
    disk->Append(file, kBlock);
    appended += kBlock.size();
  }
  CHECK(disk->MustWait(*file));
  test_disk.Set(TestDisk::kWorks);
  RunUntil([this] { return !disk->MustWait(*file); });
  CHECK(Finish());
  CHECK(Content().size() == appended);
}

TEST_CASE_METHOD(Fixture,
                 "nobody waits for a disk that hangs: whole lines are dropped and counted") {
  test_disk.Set(TestDisk::kHangs);
  disk->Append(file, "first\n");
  test_disk.WaitForWrites(1);
  int64_t lines_appended = 1;
  while (!disk->MustWait(*file)) {
    disk->Append(file, kBlock);
    ++lines_appended;
  }
  RunUntil([this] { return !disk->MustWait(*file); });
  REQUIRE(troubles.size() == 1);
  CHECK_THAT(troubles[0], Catch::Contains("the log disk hangs"));
  for (size_t i = 0; i < LogDisk::kMost / kBlock.size(); ++i) {
    disk->Append(file, "in pieces ");
    disk->Append(file, kBlock);
    ++lines_appended;
  }
  disk->Append(file, "the beginning ");
  test_disk.Set(TestDisk::kWorks);
  test_disk.WaitForWrites(2);  // Of what was queued: there is room again.
  disk->Append(file, "and the end of a line\nlast\n");
  lines_appended += 2;
  RunUntil([this] { return troubles.size() == 2; });
  CHECK_THAT(troubles[1], Catch::Contains("answers again"));
  CHECK(Finish());
  const std::vector<std::string> lines = absl::StrSplit(Content(), '\n', absl::SkipEmpty());
  CHECK(lines.front() == "first");
  CHECK(lines.back() == "last");
  int64_t missing = 0;
  REQUIRE(std::sscanf(lines[lines.size() - 2].c_str(), "[convene: %ld lines", &missing) == 1);
  CHECK(missing > 0);
  CHECK(static_cast<int64_t>(lines.size()) - 1 + missing == lines_appended);
  for (size_t i = 1; i < lines.size() - 2; ++i) {
    CHECK_THAT(lines[i] + "\n", Catch::EndsWith(kBlock));
  }
}

TEST_CASE_METHOD(Fixture, "a line whose rest is the last thing to find room is no missing line") {
  test_disk.Set(TestDisk::kHangs);
  disk->Append(file, "first\n");
  test_disk.WaitForWrites(1);
  for (size_t i = 0; i + 1 < LogDisk::kMost / kBlock.size(); ++i) disk->Append(file, kBlock);
  disk->Append(file, "the beginning ");
  disk->Append(file, kBlock);
  test_disk.Set(TestDisk::kWorks);
  disk->Append(file, "last\n");
  CHECK(Finish());
  const std::string content = Content();
  CHECK_THAT(content, Catch::Contains("\nthe beginning " + kBlock));
  CHECK_THAT(content, !Catch::Contains(" 0 lines"));
}

TEST_CASE_METHOD(Fixture, "a full disk loses lines, says so once, and goes on where it can") {
  test_disk.Set(TestDisk::kFull);
  disk->Append(file, "lost\n");
  test_disk.WaitForWrites(1);
  disk->Append(file, "lost too\n");
  test_disk.WaitForWrites(2);
  test_disk.Set(TestDisk::kWorks);
  disk->Append(file, "kept\n");
  CHECK(Finish());
  CHECK(Content() ==
        "[convene: 2 lines (14 B) are missing here: the disk did not take them]\nkept\n");
  RunUntil([this] { return troubles.size() == 2; });
  CHECK_THAT(troubles[0], Catch::Contains("x.log: No space left on device"));
  CHECK_THAT(troubles[1], Catch::Contains("x.log grows again; 2 lines (14 B) were dropped"));
  CHECK_THAT(disk->Loss(), Catch::StartsWith("2 lines (14 B) for log files (write ") &&
                               Catch::Contains("x.log: No space left on device"));
}

TEST_CASE_METHOD(Fixture,
                 "a task runs on the disk's thread, and a hanging disk is not waited for") {
  const auto ran = std::make_shared<bool>(false);
  CHECK(disk->Do([ran] { *ran = true; }, absl::Seconds(20)));
  CHECK(*ran);
  test_disk.Set(TestDisk::kHangs);
  disk->Append(file, "x\n");
  test_disk.WaitForWrites(1);
  CHECK_FALSE(disk->Do([] {}, absl::Milliseconds(1)));
}

TEST_CASE_METHOD(Fixture, "the end does not wait for a disk that hangs longer than it is told to") {
  test_disk.Set(TestDisk::kHangs);
  disk->Append(file, "x\n");
  test_disk.WaitForWrites(1);
  CHECK_FALSE(disk->Finish(absl::Milliseconds(1)));
  disk.reset();  // Leaves the thread behind.
}

TEST_CASE_METHOD(Fixture, "old files are compressed by the end, also those of a closed file") {
  file = disk->Open({directory.File("logs/x.log"), 10, 2});
  disk->Append(file, "line1\nline2\nline3\nline4\n");
  disk->Close(file);
  file.reset();
  CHECK(Finish());
  const auto names = ListDirectory(directory.File("logs"));
  REQUIRE_OK(names);
  CHECK(*names == std::vector<std::string>{"x.log", "x.log.1.gz", "x.log.2.gz"});
}

}  // namespace
}  // namespace convene::agent

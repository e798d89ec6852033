#include "worker_runtime/session/progress_writer.h"

#include <cstring>
#include <string>

#include "tools/base/files.h"
#include "tools/base/testing/manual_clock.h"
#include "tools/base/testing/status_testing.h"
#include "tools/base/testing/temp_dir.h"

namespace convene::worker {
namespace {

struct Page {
  Page() { Fill(contract::kProgressMagic); }
  void Fill(const std::string& magic) {
    std::string bytes(contract::kProgressPageBytes, '\0');
    bytes.replace(0, magic.size(), magic);
    REQUIRE_OK(WriteFileAtomic(path, bytes));
  }
  contract::ProgressPage Read() const {
    contract::ProgressPage page;
    const auto bytes = ReadFile(path);
    REQUIRE_OK(bytes);
    std::memcpy(&page, bytes->data(), sizeof(page));
    return page;
  }

  testing::TempDir directory;
  const std::string path = directory.File("page");
  ManualClock clock;
};

TEST_CASE_METHOD(Page, "what is told stands at the documented places, with an even sequence") {
  auto writer = ProgressWriter::Open(path, 3, clock);
  REQUIRE_OK(writer);
  CHECK(Read().sequence == 0);
  clock.Advance(absl::Seconds(5));
  (*writer)->Tell(1700, "checkpoint");
  (*writer)->Tell(1701, "step");
  const contract::ProgressPage page = Read();
  CHECK(page.sequence == 4);
  CHECK(page.step == 1701);
  CHECK(page.changed_at_ns == 5'000'000'000);
  CHECK(page.flags == 3);
  CHECK(std::string(page.phase, sizeof(page.phase)) == "step" + std::string(20, '\0'));
}

TEST_CASE_METHOD(Page, "facts are told with the next step, and a flag says which of them hold") {
  auto writer = ProgressWriter::Open(path, 1, clock);
  REQUIRE_OK(writer);
  ProgressFacts& facts = (*writer)->facts();
  facts.tells_times = true;
  facts.compute = absl::Nanoseconds(5);
  facts.wait = absl::Nanoseconds(6);
  facts.data = absl::Nanoseconds(7);
  facts.checkpoint = absl::Nanoseconds(8);
  facts.place = 4;
  CHECK(Read().sequence == 0);
  (*writer)->Tell(1, "step");
  CHECK(Read().flags == (1 | contract::kProgressTellsTimesFlag));
  facts.tokens = 9;
  facts.loss = 1.25;
  facts.memory_bytes = 10;
  facts.memory_peak_bytes = 11;
  facts.mfu = 0.413;
  (*writer)->Tell(2, "step");
  const contract::ProgressPage page = Read();
  CHECK(page.flags == (1 | contract::kProgressTellsTimesFlag | contract::kProgressTellsTokensFlag |
                       contract::kProgressTellsMemoryFlag | contract::kProgressTellsLossFlag));
  CHECK(page.compute_ns == 5);
  CHECK(page.wait_ns == 6);
  CHECK(page.data_ns == 7);
  CHECK(page.checkpoint_ns == 8);
  CHECK(page.tokens == 9);
  CHECK(page.memory_bytes == 10);
  CHECK(page.memory_peak_bytes == 11);
  CHECK(page.loss == 1.25);
  CHECK(page.place == 4);
  CHECK(page.mfu_millionths == 413000);
}

TEST_CASE_METHOD(Page, "the wait for a rank has a sequence of its own, and ends") {
  auto writer = ProgressWriter::Open(path, 0, clock);
  REQUIRE_OK(writer);
  const AwaitedRank awaited = {
      .rank = 3, .number = 17, .operation = "all_reduce", .group = "expert dp gather"};
  (*writer)->TellAwaited(&awaited);
  const contract::ProgressPage page = Read();
  CHECK(page.sequence == 0);
  CHECK(page.awaits_sequence == 2);
  CHECK(page.awaits_rank == 4);
  CHECK(page.awaits_number == 17);
  CHECK(std::string(page.awaits_operation) == "all_reduce");
  CHECK(std::string(page.awaits_group) == "expert dp gather");
  (*writer)->TellAwaited(nullptr);
  CHECK(Read().awaits_sequence == 4);
  CHECK(Read().awaits_rank == 0);
}

TEST_CASE_METHOD(Page, "a long phase is cut and still ends with a zero") {
  auto writer = ProgressWriter::Open(path, 0, clock);
  REQUIRE_OK(writer);
  (*writer)->Tell(1, std::string(100, 'x'));
  CHECK(std::string(Read().phase) == std::string(23, 'x'));
}

TEST_CASE_METHOD(Page, "a page of another version, or of another length, is left alone") {
  Fill("CONVPRG9");
  CHECK_STATUS(ProgressWriter::Open(path, 0, clock), absl::StatusCode::kFailedPrecondition,
               "another version");
  REQUIRE_OK(WriteFileAtomic(path, "short"));
  CHECK_STATUS(ProgressWriter::Open(path, 0, clock), absl::StatusCode::kFailedPrecondition,
               "no progress page");
  CHECK_STATUS(ProgressWriter::Open(path + "x", 0, clock), absl::StatusCode::kNotFound, path);
}

TEST_CASE_METHOD(Page, "without a page telling does nothing") {
  auto writer = ProgressWriter::Open("", 0, clock);
  REQUIRE_OK(writer);
  (*writer)->Tell(1, "step");
  (*writer)->TellAwaited(nullptr);
}

}  // namespace
}  // namespace convene::worker

#include "agent/hang/progress_page.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>

#include "tools/base/files.h"
#include "tools/base/testing/status_testing.h"
#include "tools/base/testing/temp_dir.h"
#include "worker_runtime/contract/progress_page.h"

namespace convene::agent {
namespace {

// A worker that writes what it likes.
struct Fixture {
  Fixture() {
    auto created = ProgressPage::Create(directory.path());
    REQUIRE_OK(created);
    page = *std::move(created);
    file.Reset(open(page->path().c_str(), O_RDWR | O_CLOEXEC));
    REQUIRE(file.valid());
    std::memcpy(bytes.magic, contract::kProgressMagic, sizeof(bytes.magic));
    std::memcpy(bytes.phase, "step", 4);
    bytes.sequence = 2;
  }
  std::optional<WorkerReading> Write() {
    CHECK(pwrite(file.get(), &bytes, sizeof(bytes), 0) == sizeof(bytes));
    return page->Read();
  }

  testing::TempDir directory;
  std::unique_ptr<ProgressPage> page;
  UniqueFd file;
  contract::ProgressPage bytes = {};
};

TEST_CASE_METHOD(Fixture, "a page that nobody has written to says nothing") {
  struct stat info = {};
  REQUIRE(fstat(file.get(), &info) == 0);
  CHECK(info.st_size == 4096);
  CHECK((info.st_mode & 0777) == 0600);
  CHECK_FALSE(page->Read().has_value());
}

TEST_CASE_METHOD(Fixture, "what a worker tells is read") {
  bytes.step = 1700;
  bytes.changed_at_ns = 5'000'000'000;
  bytes.flags = contract::kProgressTellsEveryPhaseFlag;
  bytes.pid = 77;
  std::memcpy(bytes.phase, "checkpoint", 10);
  const auto reading = Write();
  REQUIRE(reading.has_value());
  CHECK(reading->step == 1700);
  CHECK(reading->phase == "checkpoint");
  CHECK(reading->changed_at == MonotonicTime::FromEpoch(absl::Seconds(5)));
  CHECK(reading->pid == 77);
  CHECK(reading->tells_every_phase);
  CHECK_FALSE(reading->dumps_on_signal);
}

TEST_CASE_METHOD(Fixture, "the wait of a collective is read, but not while it is written") {
  CHECK_FALSE(Write()->tells_awaited);
  bytes.awaits_sequence = 2;
  CHECK(Write()->tells_awaited);
  CHECK(Write()->awaited_rank == -1);
  bytes.awaits_rank = 4;
  bytes.awaits_number = 17;
  std::memcpy(bytes.awaits_operation, "all_reduce", 10);
  std::memcpy(bytes.awaits_group, "dp\1", 3);
  CHECK(Write()->awaited_rank == 3);
  CHECK(Write()->awaits == "all_reduce #17 of dp? waits for rank 3");
  bytes.awaits_sequence = 3;
  CHECK(Write()->awaited_rank == -1);
  CHECK(Write()->tells_awaited);
  bytes.awaits_sequence = 4;
  bytes.awaits_rank = UINT32_MAX;
  CHECK(Write()->awaited_rank == -1);
}

TEST_CASE_METHOD(Fixture, "the second part is read where its flags say that it is there") {
  bytes.compute_ns = 1'000'000'000;
  bytes.wait_ns = 2'000'000'000;
  bytes.data_ns = 3'000'000'000;
  bytes.checkpoint_ns = 4'000'000'000;
  bytes.tokens = 77;
  bytes.memory_bytes = 88;
  bytes.memory_peak_bytes = 99;
  bytes.loss = 1.5;
  bytes.place = 2;
  bytes.mfu_millionths = 413000;
  auto reading = Write();
  REQUIRE(reading.has_value());
  CHECK(reading->times.compute == absl::ZeroDuration());
  CHECK(reading->tokens == 0);
  CHECK(reading->memory_bytes == 0);
  CHECK(reading->loss == 0);
  CHECK(reading->place == 2);
  CHECK(reading->mfu == Approx(0.413));
  bytes.flags = contract::kProgressTellsTimesFlag | contract::kProgressTellsTokensFlag |
                contract::kProgressTellsMemoryFlag | contract::kProgressTellsLossFlag;
  reading = Write();
  REQUIRE(reading.has_value());
  CHECK(reading->times.compute == absl::Seconds(1));
  CHECK(reading->times.wait == absl::Seconds(2));
  CHECK(reading->times.data == absl::Seconds(3));
  CHECK(reading->times.checkpoint == absl::Seconds(4));
  CHECK(reading->tokens == 77);
  CHECK(reading->memory_bytes == 88);
  CHECK(reading->memory_peak_bytes == 99);
  CHECK(reading->loss == 1.5);
}

TEST_CASE_METHOD(Fixture, "a page that is being written to, or has lost its magic, says nothing") {
  bytes.sequence = 3;
  CHECK_FALSE(Write().has_value());
  bytes.sequence = 4;
  CHECK(Write().has_value());
  bytes.magic[7] = '2';
  CHECK_FALSE(Write().has_value());
}

TEST_CASE_METHOD(Fixture, "any bytes are read as something sane") {
  std::memset(&bytes, 0xFE, sizeof(bytes));
  std::memcpy(bytes.magic, contract::kProgressMagic, sizeof(bytes.magic));
  auto reading = Write();
  REQUIRE(reading.has_value());
  CHECK(reading->step == 0);
  CHECK(reading->phase == std::string(23, '?'));
  CHECK(reading->times.compute == absl::Nanoseconds(INT64_MAX));
  CHECK(reading->tokens == int64_t{1} << 53);
  CHECK(reading->place == INT32_MAX);
  bytes.step = INT64_MAX;
  std::memset(bytes.phase, 0, sizeof(bytes.phase));
  reading = Write();
  CHECK(reading->step == int64_t{1} << 53);
  CHECK(reading->phase == "step");
}

TEST_CASE_METHOD(Fixture, "a worker that truncates or removes its page harms only itself") {
  CHECK(Write().has_value());
  CHECK(ftruncate(file.get(), 10) == 0);
  CHECK_FALSE(page->Read().has_value());
  CHECK(unlink(page->path().c_str()) == 0);
  CHECK_FALSE(page->Read().has_value());
}

TEST_CASE_METHOD(Fixture, "pages go with their agent, and those of killed agents are swept") {
  const std::string dead = directory.File("convene-progress.dead");
  const std::string foreign = directory.File("something-else");
  REQUIRE_OK(WriteFileAtomic(dead, "left behind"));
  REQUIRE_OK(WriteFileAtomic(foreign, "not ours"));
  ProgressPage::SweepDead(directory.path());
  CHECK(access(dead.c_str(), F_OK) != 0);
  CHECK(access(foreign.c_str(), F_OK) == 0);
  CHECK(access(page->path().c_str(), F_OK) == 0);
  const std::string path = page->path();
  page.reset();
  CHECK(access(path.c_str(), F_OK) != 0);
}

TEST_CASE("a directory that is not there is an error") {
  CHECK_STATUS(ProgressPage::Create("/no/such/place"), absl::StatusCode::kNotFound,
               "/no/such/place");
}

}  // namespace
}  // namespace convene::agent

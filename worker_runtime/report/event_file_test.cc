#include "worker_runtime/report/event_file.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "proto/tensorboard.pb.h"
#include "tools/base/files.h"
#include "tools/base/testing/status_testing.h"
#include "tools/base/testing/temp_dir.h"

namespace convene::worker {
namespace {

using ::convene::testing::TempDir;

const absl::Time kNow = absl::FromUnixMillis(1'700'000'000'500);

std::string OnlyFile(const TempDir& dir) {
  const std::vector<std::string> names = ListDirectory(dir.File("tb")).value();
  REQUIRE(names.size() == 1);
  CHECK(absl::StartsWith(names[0], "events.out.tfevents.1700000000."));
  return dir.File("tb/" + names[0]);
}

std::vector<tensorboard::Event> Events(const std::string& path) {
  std::string rest = ReadFile(path).value();
  std::vector<tensorboard::Event> events;
  while (!rest.empty()) {
    REQUIRE(rest.size() >= 16);
    uint64_t length = 0;
    std::memcpy(&length, rest.data(), sizeof(length));
    REQUIRE(rest.size() >= 16 + length);
    const std::string bytes = rest.substr(12, length);
    CHECK(rest.substr(0, 16 + length) == EventRecord(bytes));
    REQUIRE(events.emplace_back().ParseFromString(bytes));
    rest.erase(0, 16 + length);
  }
  return events;
}

// As the writer of PyPI's tensorboard 2.21 made it (summary.writer.record_writer).
TEST_CASE("a record is framed as TensorBoard frames it") {
  const unsigned char wanted[] = {0x03, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0xb0, 0x99,
                                  0x49, 0x0e, 0x61, 0x62, 0x63, 0x6e, 0x57, 0xf1, 0x21};
  CHECK(EventRecord("abc") == std::string(reinterpret_cast<const char*>(wanted), sizeof(wanted)));
}

TEST_CASE("a run's numbers are scalars at their steps") {
  const TempDir dir;
  auto file = EventFile::Create(dir.File("tb"), /*resumed_step=*/7, kNow);
  REQUIRE_OK(file.status());
  REQUIRE_OK(file->Append(StepMetrics{.step = 8,
                                      .loss = 2.5,
                                      .grad_norm = std::numeric_limits<double>::quiet_NaN(),
                                      .skipped = "no_number",
                                      .tokens = 64,
                                      .layout = "dp1"},
                          kNow));
  REQUIRE_OK(file->Append(ValidationMetrics{.step = 8, .validation_loss = 2}, kNow));
  REQUIRE_OK(file->Append(
      ValidationMetrics{
          .step = 8, .validation_set = "code", .validation_loss = 3, .bits_per_byte = 4},
      kNow));
  REQUIRE_OK(file->Append(CheckpointMetrics{.step = 8, .checkpoint_seconds = 0.5}, kNow));
  const std::vector<tensorboard::Event> events = Events(OnlyFile(dir));
  REQUIRE(events.size() == 6);
  CHECK(events[0].file_version() == "brain.Event:2");
  CHECK(events[0].wall_time() == 1'700'000'000.5);
  CHECK(events[1].session_log().status() == tensorboard::SessionLog::START);
  CHECK(events[1].step() == 8);
  std::map<std::string, float> scalars;
  for (const tensorboard::Event& event : events) {
    for (const tensorboard::Scalar& scalar : event.summary().value()) {
      CHECK(event.step() == 8);
      CHECK(scalars.insert({scalar.tag(), scalar.simple_value()}).second);
    }
  }
  CHECK(scalars.at("train/loss") == 2.5f);
  CHECK(std::isnan(scalars.at("train/grad_norm")));
  CHECK(scalars.at("train/tokens") == 64);
  CHECK(scalars.at("validation/loss") == 2);
  CHECK(scalars.at("validation/code/loss") == 3);
  CHECK(scalars.at("validation/code/bits_per_byte") == 4);
  CHECK(scalars.at("checkpoint/seconds") == 0.5);
  CHECK(scalars.count("train/skipped") + scalars.count("train/layout") == 0);
}

TEST_CASE("a record that the disk has no room for leaves no part behind") {
  const TempDir dir;
  auto file = EventFile::Create(dir.File("tb"), 0, kNow);
  REQUIRE_OK(file.status());
  {
    const ScopedFileFault fault(
        [](FileOp op, const std::string&) { return op == FileOp::kWrite ? ENOSPC : 0; });
    CHECK_STATUS(file->Append(ValidationMetrics{.step = 1}, kNow),
                 absl::StatusCode::kResourceExhausted, "tfevents");
  }
  REQUIRE_OK(file->Append(ValidationMetrics{.step = 2}, kNow));
  const std::vector<tensorboard::Event> events = Events(OnlyFile(dir));
  REQUIRE(events.size() == 3);
  CHECK(events[2].step() == 2);
  REQUIRE_OK(WriteFileAtomic(dir.File("file"), ""));
  CHECK_STATUS(EventFile::Create(dir.File("file/tb"), 0, kNow).status(),
               absl::StatusCode::kInvalidArgument, "file");
}

}  // namespace
}  // namespace convene::worker

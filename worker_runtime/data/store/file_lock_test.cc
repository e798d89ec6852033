#include "worker_runtime/data/store/file_lock.h"

#include <unistd.h>

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tools/base/logging.h"
#include "tools/base/testing/manual_clock.h"
#include "tools/base/testing/status_testing.h"
#include "tools/base/testing/temp_dir.h"

namespace convene::worker {
namespace {

using convene::testing::TempDir;

// Another process works while this one sleeps.
class WorkingClock : public ManualClock {
 public:
  explicit WorkingClock(std::function<void(absl::Duration now)> work) : work_(std::move(work)) {}
  void SleepFor(absl::Duration duration) override {
    Advance(duration);
    work_(Now().since_epoch());
  }

 private:
  const std::function<void(absl::Duration now)> work_;
};

FileLock Held(const std::string& path, Clock* clock) {
  auto lock = FileLock::Take(path, {.silence_max = absl::ZeroDuration(), .clock = clock});
  REQUIRE_OK(lock);
  return *std::move(lock);
}

TEST_CASE("a holder that comes further is waited for, however long it takes") {
  const TempDir dir;
  const std::string path = dir.File("a.lock");
  std::optional<FileLock> holder;
  WorkingClock clock([&](absl::Duration now) {
    const int64_t seconds = absl::ToInt64Seconds(now);
    if (holder.has_value()) holder->Say(seconds / 20, 10);
    if (seconds >= 200) holder.reset();
  });
  holder.emplace(Held(path, &clock));
  std::vector<int64_t> heard;
  const auto lock = FileLock::Take(path, {.silence_max = absl::Seconds(22),
                                          .clock = &clock,
                                          .progress = [&](int64_t done, int64_t total) {
                                            heard.push_back(done);
                                            CHECK(total == 10);
                                          }});
  REQUIRE_OK(lock);
  CHECK(heard == std::vector<int64_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9});
  CHECK(clock.Now().since_epoch() >= absl::Seconds(200));
}

TEST_CASE("a holder that comes no further is named when the wait ends") {
  const TempDir dir;
  const std::string path = dir.File("a.lock");
  WorkingClock clock([](absl::Duration) {});
  FileLock holder = Held(path, &clock);
  clock.Advance(absl::Seconds(2));
  holder.Say(7, 10);
  const FileLock::Wait wait = {.silence_max = absl::Minutes(1), .clock = &clock};
  CHECK_STATUS(FileLock::Take(path, wait), absl::StatusCode::kDeadlineExceeded,
               absl::StrCat(path, " is held by process ", getpid(), " on "));
  CHECK_STATUS(FileLock::Take(path, wait), absl::StatusCode::kDeadlineExceeded,
               "has read 7 of 10 bytes and came no further within 1m");
}

TEST_CASE("a caller that does not wait is not told to end the holder") {
  const TempDir dir;
  const std::string path = dir.File("a.lock");
  ManualClock clock;
  const FileLock holder = Held(path, &clock);
  const absl::Status held =
      FileLock::Take(path, {.silence_max = absl::ZeroDuration(), .clock = &clock}).status();
  CHECK(held.code() == absl::StatusCode::kDeadlineExceeded);
  CHECK(held.message() == absl::StrCat(path, " is held by process ", getpid(), " on ", HostName(),
                                       ", which has read 0 of 0 bytes"));
}

TEST_CASE("a new holder has not come as far as the one before it") {
  const TempDir dir;
  const std::string path = dir.File("a.lock");
  ManualClock clock;
  {
    FileLock first = Held(path, &clock);
    clock.Advance(absl::Seconds(2));
    first.Say(7, 10);
  }
  const FileLock second = Held(path, &clock);
  CHECK_STATUS(FileLock::Take(path, {.silence_max = absl::Seconds(1), .clock = &clock}),
               absl::StatusCode::kDeadlineExceeded, "has read 0 of 0 bytes");
}

TEST_CASE("a holder may remove its file") {
  const TempDir dir;
  const std::string path = dir.File("a.lock");
  ManualClock clock;
  const FileLock removed = Held(path, &clock);
  unlink(path.c_str());
  const FileLock other = Held(path, &clock);
  CHECK(access(path.c_str(), F_OK) == 0);
}

}  // namespace
}  // namespace convene::worker

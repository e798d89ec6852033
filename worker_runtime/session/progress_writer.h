// The worker's end of its progress page (worker_runtime/contract/progress_page.h).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "tools/base/clock.h"
#include "worker_runtime/contract/progress_page.h"

namespace convene::worker {

// The facts beside step and phase: the page's second part. Durations and tokens are sums that only
// grow.
struct ProgressFacts {
  bool tells_times = false;  // the next four hold
  absl::Duration compute;
  absl::Duration wait;
  absl::Duration data;
  absl::Duration checkpoint;
  std::optional<int64_t> tokens;
  std::optional<double> loss;
  int64_t memory_bytes = 0;  // 0: not told
  int64_t memory_peak_bytes = 0;
  uint32_t place = 0;
  double mfu = 0;  // a share of the device's peak; 0: not told
};

// The wait of a collective for another rank: the page's third part.
struct AwaitedRank {
  int rank = 0;  // of all ranks
  uint64_t number = 0;
  absl::string_view operation;
  absl::string_view group;
};

// One thread calls Tell, and one at a time TellAwaited.
class ProgressWriter {
 public:
  // `path`: CONVENE_PROGRESS; "" = there is no agent, and Tell does nothing. `flags`:
  // kProgress...Flag. Errors of open and mmap; FailedPrecondition when the file is no page of this
  // version.
  static absl::StatusOr<std::unique_ptr<ProgressWriter>> Open(const std::string& path,
                                                              uint32_t flags, Clock& clock);
  ~ProgressWriter();
  ProgressWriter(const ProgressWriter&) = delete;
  ProgressWriter& operator=(const ProgressWriter&) = delete;

  // The next Tell tells them.
  ProgressFacts& facts() { return facts_; }

  // `step`: the last finished one. A phase longer than 23 bytes is cut. Two or three dozen
  // nanoseconds.
  void Tell(int64_t step, absl::string_view phase);
  // Null: nothing waits. Long texts are cut. As quick as Tell.
  void TellAwaited(const AwaitedRank* awaited);

 private:
  ProgressWriter(contract::ProgressPage* page, uint32_t flags, Clock& clock)
      : page_(page), flags_(flags), clock_(clock) {}

  contract::ProgressPage* const page_;  // null: nobody watches
  const uint32_t flags_;
  Clock& clock_;
  ProgressFacts facts_;
};

}  // namespace convene::worker

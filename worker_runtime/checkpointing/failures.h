// PURE. Counts failures in a row of a task that the training can do without for a while.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace convene::worker {

class FailuresInARow {
 public:
  // REQUIRES: most >= 1.
  explicit FailuresInARow(int64_t most) : most_(most) {}

  // Call it after each attempt. OK while the training may go on; `attempt`'s error when it is the
  // most-th failure in a row.
  absl::Status Record(const absl::Status& attempt) {
    count_ = attempt.ok() ? 0 : count_ + 1;
    if (count_ < most_) return absl::OkStatus();
    return absl::Status(attempt.code(),
                        absl::StrCat(attempt.message(), " (", count_,
                                     count_ == 1 ? " failure)" : " failures in a row)"));
  }

  int64_t count() const { return count_; }
  int64_t most() const { return most_; }

 private:
  const int64_t most_;
  int64_t count_ = 0;
};

}  // namespace convene::worker

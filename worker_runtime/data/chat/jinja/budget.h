// PURE. How much work and memory one rendering may take.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"

namespace convene::worker::jinja {

// Not thread-safe. One per rendering.
class Budget {
 public:
  Budget(int64_t steps, size_t max_bytes) : steps_(steps), max_bytes_(max_bytes) {}

  // Takes `steps` off. ResourceExhausted: none are left.
  absl::Status Charge(int64_t steps = 1) {
    steps_ -= steps;
    if (steps_ >= 0) return absl::OkStatus();
    return absl::ResourceExhaustedError(
        "the chat template takes too many steps: look for a loop over a long list within another");
  }

  int64_t steps() const { return steps_; }  // left

  // ResourceExhausted: a string may not be of `bytes`.
  absl::Status CheckBytes(size_t bytes) const {
    if (bytes <= max_bytes_) return absl::OkStatus();
    return absl::ResourceExhaustedError(
        "the chat template makes a text that is longer than the limit");
  }

  // For a string of `bytes` that is to be made: checks and charges it.
  absl::Status ChargeBytes(size_t bytes) {
    const absl::Status checked = CheckBytes(bytes);
    return checked.ok() ? Charge(static_cast<int64_t>(bytes / 256)) : checked;
  }

 private:
  int64_t steps_;
  size_t max_bytes_;
};

}  // namespace convene::worker::jinja

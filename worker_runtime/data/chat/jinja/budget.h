// PURE. How much work and memory one rendering may take.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"

namespace convene::worker::jinja {

// Bytes of text that take as long as one step of a template.
constexpr size_t kBytesPerStep = 32;
// The steps of a part of a string in a list: its memory counts, a hundred bytes.
constexpr int64_t kPartSteps = 16;

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
    return checked.ok() ? Charge(static_cast<int64_t>(bytes / kBytesPerStep)) : checked;
  }

  // For `times` walks over `bytes`.
  absl::Status ChargeWalks(size_t times, size_t bytes) {
    return Charge(static_cast<int64_t>(times * bytes / kBytesPerStep));
  }

  // For looking for `wanted` bytes in a text of `bytes`, besides one walk over the text: at every
  // place the comparison may come to nearly all of them, many at once.
  absl::Status ChargeSearch(size_t bytes, size_t wanted) {
    if (wanted > bytes) return absl::OkStatus();
    return ChargeWalks(bytes - wanted + 1, wanted / kBytesPerStep);
  }

 private:
  int64_t steps_;
  size_t max_bytes_;
};

}  // namespace convene::worker::jinja

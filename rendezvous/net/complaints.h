// Warnings that a client can cause as often as it likes.
#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"
#include "tools/base/clock.h"

namespace convene::rendezvous {

// Writes one warning a second at most, and with the next one how many were left out. Not
// thread-safe.
class Complaints {
 public:
  void Warn(MonotonicTime now, absl::string_view text);

 private:
  MonotonicTime speaks_again_at_;
  int64_t unsaid_ = 0;
};

}  // namespace convene::rendezvous

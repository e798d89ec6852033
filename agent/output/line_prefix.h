// PURE. torchrun's templates: the prefix that stands before a worker's line, and the local rank in
// a worker's arguments.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace convene::agent {

// The worker that the lines come from.
struct LineSource {
  std::string role_name;
  int local_rank = 0;
  int rank = 0;
  std::string hostname;
};

// A template as torchrun reads it (Python's string.Template.safe_substitute): ${name} and $name of
// role_name, local_rank, rank, hostname and time become their values, "$$" a "$", and other text
// stays unchanged. The time is local, to the millisecond: "2026-11-21 20:35:13.042". Not
// thread-safe.
class LinePrefix {
 public:
  LinePrefix() = default;
  LinePrefix(absl::string_view pattern, const LineSource& source);

  // Valid until the next call.
  const std::string& At(absl::Time now);

 private:
  std::vector<std::string> pieces_ = {""};  // the time stands between each two
  std::string text_;
  int64_t text_of_ms_ = -1;
};

// The same kind of template with the one name local_rank.
std::string WithLocalRank(absl::string_view pattern, int local_rank);

}  // namespace convene::agent

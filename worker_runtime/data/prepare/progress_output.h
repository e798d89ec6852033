// Shows on a stream how far a long reading has come.
#pragma once

#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <utility>

#include "tools/base/clock.h"

namespace convene::worker {

// "[####----]  25%  1.0 GiB of 4.0 GiB  25.1 MiB/s  ETA 2:03": on a terminal one line that is drawn
// again and again, else a line now and then. The rate is that since the first Show: work
// that an earlier process did counts for nothing. Write errors are ignored. Not thread-safe.
class ProgressOutput {
 public:
  // `stream` and `clock` are not owned. `label`: stands before the bar.
  ProgressOutput(std::FILE* stream, bool is_terminal, std::string label = "",
                 Clock* clock = &Clock::Real())
      : stream_(stream), is_terminal_(is_terminal), label_(std::move(label)), clock_(clock) {}

  void Show(int64_t done_bytes, int64_t total_bytes);

  // Takes an open line away; what is shown next begins anew. Call it at the end, and before
  // anything else is written there.
  void End();

 private:
  struct Point {
    int64_t bytes = 0;
    MonotonicTime time;
  };
  std::string Text(const Point& now, int64_t total_bytes) const;

  std::FILE* const stream_;
  const bool is_terminal_;
  const std::string label_;
  Clock* const clock_;
  std::optional<Point> first_;
  MonotonicTime last_written_;
  bool is_line_open_ = false;
};

}  // namespace convene::worker

// PURE. Bytes of a worker's output become lines.
#pragma once

#include <functional>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "tools/base/clock.h"

namespace convene::agent {

// Not thread-safe.
//
// A carriage return works as on a terminal: later text replaces the line's text. So a progress line
// that was redrawn a hundred times and then ended becomes one line with its last text.
class LineAssembler {
 public:
  static constexpr size_t kLongestLine = 64 * 1024;  // bytes; a longer one is cut into several
  // A line that has been open for so long is shown as it stands, then once in that time while it
  // changes: a worker that hangs within a line, and a progress bar, are seen.
  static constexpr absl::Duration kOpenPatience = absl::Seconds(10);

  // `line` is complete, without its end ("\n" or "\r\n").
  using OnLine = std::function<void(absl::string_view line)>;

  void Add(absl::string_view bytes, MonotonicTime now, const OnLine& on_line);
  // Passes on the last line, when it had no end.
  void End(const OnLine& on_line);
  // The present text of an open line that has been redrawn; "" when the open line had no carriage
  // return (it waits to be whole).
  absl::string_view InPlace() const;

  // When the open line is to be shown; InfiniteFuture: there is nothing new to show.
  MonotonicTime due() const {
    const bool is_new = shown_ < open_.size() && (shown_ > 0 || open_ != last_shown_);
    return is_new ? show_at_ : MonotonicTime::InfiniteFuture();
  }
  // Where the open line is due, passes on its text: all of it after a redraw, else what came since
  // it was last shown. The whole line comes once it is whole.
  void ShowOpen(MonotonicTime now, const OnLine& on_line);

 private:
  // Bytes without "\n"; without "\n" and "\r".
  void AddRedrawn(absl::string_view bytes, const OnLine& on_line);
  void AddWithinLine(absl::string_view bytes, const OnLine& on_line);
  void PassOn(const OnLine& on_line);

  std::string open_;              // since the last end of line or carriage return
  bool carriage_return_ = false;  // the last byte was one: "\r\n" is an end of line, "\rx" a redraw
  bool redrawn_ = false;
  bool cut_ = false;  // the beginning of the line has been passed on
  size_t shown_ = 0;  // so many bytes of open_ have been
  // The open line's text when it was last shown: a redraw with the same text is no change.
  std::string last_shown_;
  MonotonicTime show_at_;
};

}  // namespace convene::agent

// PURE. Bytes of a worker's output become lines.
#pragma once

#include <functional>
#include <string>

#include "absl/strings/string_view.h"

namespace convene::agent {

// Not thread-safe.
//
// A carriage return works as on a terminal: later text replaces the line's text. So a progress line
// that was redrawn a hundred times and then ended becomes one line with its last text.
class LineAssembler {
 public:
  static constexpr size_t kLongestLine = 64 * 1024;  // bytes; a longer one is cut into several

  // `line` is complete, without its end ("\n" or "\r\n").
  using OnLine = std::function<void(absl::string_view line)>;

  void Add(absl::string_view bytes, const OnLine& on_line);
  // Passes on the last line, when it had no end.
  void End(const OnLine& on_line);
  // The present text of an open line that has been redrawn; "" when the open line had no carriage
  // return (it waits to be whole).
  absl::string_view InPlace() const;

 private:
  // Bytes without "\n"; without "\n" and "\r".
  void AddRedrawn(absl::string_view bytes, const OnLine& on_line);
  void AddWithinLine(absl::string_view bytes, const OnLine& on_line);

  std::string open_;              // since the last end of line or carriage return
  bool carriage_return_ = false;  // the last byte was one: "\r\n" is an end of line, "\rx" a redraw
  bool redrawn_ = false;
};

}  // namespace convene::agent

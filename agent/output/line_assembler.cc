#include "agent/output/line_assembler.h"

#include <algorithm>

namespace convene::agent {

void LineAssembler::Add(absl::string_view bytes, MonotonicTime now, const OnLine& on_line) {
  if (shown_ == open_.size()) show_at_ = now + kOpenPatience;
  while (!bytes.empty()) {
    const size_t newline = bytes.find('\n');
    const absl::string_view line = bytes.substr(0, newline);
    const bool whole = newline != absl::string_view::npos;
    if (whole && open_.empty() && !carriage_return_ && !cut_ && line.size() < kLongestLine &&
        line.find('\r') == absl::string_view::npos) {
      on_line(line);  // Where it stands, without a copy: nearly all lines are such.
    } else {
      AddRedrawn(line, on_line);
      if (whole && !(cut_ && open_.empty())) PassOn(on_line);
    }
    if (!whole) return;
    carriage_return_ = redrawn_ = cut_ = false;
    show_at_ = now + kOpenPatience;
    bytes.remove_prefix(newline + 1);
  }
}

void LineAssembler::AddRedrawn(absl::string_view bytes, const OnLine& on_line) {
  while (true) {
    const size_t stop = bytes.find('\r');
    AddWithinLine(bytes.substr(0, stop), on_line);
    if (stop == absl::string_view::npos) return;
    carriage_return_ = true;
    bytes.remove_prefix(stop + 1);
  }
}

void LineAssembler::AddWithinLine(absl::string_view bytes, const OnLine& on_line) {
  if (bytes.empty()) return;
  if (carriage_return_) {
    open_.clear();
    shown_ = 0;
    carriage_return_ = false;
    redrawn_ = true;
  }
  while (!bytes.empty()) {
    const size_t room = kLongestLine - open_.size();
    open_.append(bytes.data(), std::min(room, bytes.size()));
    bytes.remove_prefix(std::min(room, bytes.size()));
    if (open_.size() == kLongestLine) {
      PassOn(on_line);
      redrawn_ = false;
      cut_ = true;
    }
  }
}

void LineAssembler::PassOn(const OnLine& on_line) {
  on_line(open_);
  open_.clear();
  last_shown_.clear();
  shown_ = 0;
}

void LineAssembler::ShowOpen(MonotonicTime now, const OnLine& on_line) {
  if (now < due()) return;
  on_line(absl::string_view(open_).substr(shown_));
  shown_ = open_.size();
  last_shown_ = open_;
  show_at_ = now + kOpenPatience;
}

void LineAssembler::End(const OnLine& on_line) {
  if (!open_.empty()) on_line(open_);
  *this = LineAssembler();
}

absl::string_view LineAssembler::InPlace() const {
  if (carriage_return_) return open_;
  return redrawn_ ? absl::string_view(open_) : absl::string_view();
}

}  // namespace convene::agent

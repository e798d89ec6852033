#include "worker_runtime/profile/comm_log.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "worker_runtime/comm/collective.h"

namespace convene::worker {
namespace {

bool Communicates(const OpSpan& span) { return span.detail.operation != nullptr; }

bool IsMessage(absl::string_view operation) { return operation == kSend || operation == kReceive; }

}  // namespace

double CommLog::HiddenSeconds(const OpSpan& span) const {
  auto interval =
      std::partition_point(computing_.begin(), computing_.end(),
                           [&](const Interval& before) { return before.end <= span.begin; });
  absl::Duration hidden;
  for (; interval != computing_.end() && interval->begin < span.end; ++interval) {
    hidden += std::min(interval->end, span.end) - std::max(interval->begin, span.begin);
  }
  return absl::ToDoubleSeconds(hidden);
}

void CommLog::Count(const OpSpan& span, double hidden_seconds) {
  const OpDetail& detail = span.detail;
  if (detail.ranks <= 1) return;
  auto line = std::find_if(lines_.begin(), lines_.end(), [&](const Line& known) {
    return std::strcmp(known.op, span.op) == 0 &&
           std::strcmp(known.operation, detail.operation) == 0;
  });
  if (line == lines_.end()) {
    lines_.push_back({.op = span.op, .operation = detail.operation, .ranks = detail.ranks});
    line = std::prev(lines_.end());
  }
  ++line->calls;
  line->bytes += detail.bytes;
  line->seconds += absl::ToDoubleSeconds(span.end - span.begin);
  line->hidden_seconds += hidden_seconds;
}

void CommLog::Settle(MonotonicTime known) {
  const auto open = std::stable_partition(pending_.begin(), pending_.end(),
                                          [&](const auto& span) { return span.end <= known; });
  for (auto span = pending_.begin(); span != open; ++span) Count(*span, HiddenSeconds(*span));
  pending_.erase(pending_.begin(), open);
}

void CommLog::Add(absl::Span<const OpSpans> streams) {
  for (const OpSpans& stream : streams) left_out_ += stream.left_out;
  const size_t of_last_call = computing_.size() - computing_before_;
  for (const OpSpan& span : streams.front().spans) {
    const bool is_pass = span.detail.microbatch >= 0;
    if (Communicates(span)) {
      Count(span, 0);
    } else if (!is_pass) {
      computing_.push_back({span.begin, span.end});
    }
  }
  for (const OpSpans& stream : streams.subspan(1)) {
    for (const OpSpan& span : stream.spans) {
      if (Communicates(span)) pending_.push_back(span);
    }
  }
  if (!computing_.empty()) Settle(computing_.back().end);
  computing_.erase(computing_.begin(), computing_.begin() + computing_before_);
  computing_before_ = of_last_call;
}

std::string CommLog::Text(int64_t steps) {
  if (steps == 0) return "";
  Settle(MonotonicTime::InfiniteFuture());
  std::stable_sort(lines_.begin(), lines_.end(),
                   [](const Line& a, const Line& b) { return a.seconds > b.seconds; });
  std::string text = absl::StrFormat(
      "%-28s %10s %10s %9s %11s %11s %7s\n", absl::StrFormat("communication of %d steps", steps),
      "calls/step", "MB/call", "ms/step", "algbw GB/s", "busbw GB/s", "hidden");
  for (const Line& line : lines_) {
    const auto calls = static_cast<double>(line.calls);
    const auto bytes = static_cast<double>(line.bytes);
    absl::StrAppendFormat(
        &text, "%-28s %10.1f %10.3f %9.2f ",
        absl::StrCat(absl::StripPrefix(line.op, kCommunicationPrefix), " ", line.operation),
        calls / static_cast<double>(steps), bytes / calls / 1e6,
        1e3 * line.seconds / static_cast<double>(steps));
    if (IsMessage(line.operation) || line.seconds <= 0) {
      absl::StrAppendFormat(&text, "%11s %11s %7s\n", "-", "-", "-");
      continue;
    }
    const double algbw = bytes / line.seconds / 1e9;
    absl::StrAppendFormat(&text, "%11.3f %11.3f %6.1f%%\n", algbw,
                          algbw * BusFactor(line.operation, line.ranks),
                          100 * line.hidden_seconds / line.seconds);
  }
  if (left_out_ > 0) {
    absl::StrAppendFormat(&text, "not in this table: %d calls, for which a step had no room\n",
                          left_out_);
  }
  return text;
}

}  // namespace convene::worker

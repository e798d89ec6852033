#include "worker_runtime/profile/comm_log.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"

namespace convene::worker {
namespace {

bool Communicates(const OpSpan& span) { return span.detail.operation != nullptr; }

// Cut to the room, with a zero behind it.
template <size_t kRoom>
void Put(absl::string_view text, char (&room)[kRoom]) {
  std::copy_n(text.begin(), std::min(text.size(), kRoom - 1), room);
}

}  // namespace

bool IsSameLine(const CommLine& a, const CommLine& b) {
  return std::strcmp(a.axis, b.axis) == 0 && std::strcmp(a.operation, b.operation) == 0;
}

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
  CommLine counted = {.ranks = detail.ranks};
  Put(absl::StripPrefix(span.op, kCommunicationPrefix), counted.axis);
  Put(detail.operation, counted.operation);
  std::vector<CommLine>& lines = sheet_.lines;
  auto line = std::find_if(lines.begin(), lines.end(),
                           [&](const CommLine& known) { return IsSameLine(known, counted); });
  if (line == lines.end()) line = lines.insert(line, counted);
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
  for (const OpSpans& stream : streams) sheet_.left_out += stream.left_out;
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

CommSheet CommLog::Sheet() {
  Settle(MonotonicTime::InfiniteFuture());
  return sheet_;
}

}  // namespace convene::worker

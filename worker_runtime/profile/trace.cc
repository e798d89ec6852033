#include "worker_runtime/profile/trace.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "tools/base/check.h"

namespace convene::worker {
namespace {

// The streams' numbers follow. No thread is 0, which is the kernel's idle thread elsewhere.
constexpr int kStepsThread = 1;

// The events of one process.
class Events {
 public:
  Events(int rank, absl::Duration offset) : rank_(rank), offset_(offset) {}

  // Names the process, or (`thread` >= 0) a thread, and says where it stands among its like.
  void Name(int thread, absl::string_view name) {
    const absl::string_view kind = thread < 0 ? "process" : "thread";
    Meta(absl::StrCat(kind, "_name"), thread, absl::StrCat("\"name\":\"", name, "\""));
    Meta(absl::StrCat(kind, "_sort_index"), thread,
         absl::StrCat("\"sort_index\":", thread < 0 ? rank_ : thread));
  }
  void Label(absl::string_view label) {
    Meta("process_labels", -1, absl::StrCat("\"labels\":\"", label, "\""));
  }
  void Slice(int thread, absl::string_view name, absl::string_view arguments, MonotonicTime begin,
             MonotonicTime end) {
    Begin();
    // Both ends are rounded, never the length: Perfetto drops a slice that ends behind its parent.
    const int64_t from = Nanoseconds(begin);
    absl::StrAppendFormat(&text_,
                          "{\"ph\":\"X\",\"pid\":%d,\"tid\":%d,\"name\":\"%s\",\"ts\":%.3f,"
                          "\"dur\":%.3f,\"args\":{%s}}",
                          rank_, thread, name, static_cast<double>(from) / 1e3,
                          static_cast<double>(Nanoseconds(end) - from) / 1e3, arguments);
  }
  std::string Take() { return std::move(text_); }

 private:
  int64_t Nanoseconds(MonotonicTime time) const {
    return absl::ToInt64Nanoseconds(time.since_epoch() + offset_);
  }
  void Begin() {
    if (!text_.empty()) absl::StrAppend(&text_, kTraceBetween);
  }
  void Meta(absl::string_view name, int thread, absl::string_view arguments) {
    Begin();
    absl::StrAppend(&text_, "{\"ph\":\"M\",\"pid\":", rank_,
                    thread < 0 ? "" : absl::StrCat(",\"tid\":", thread), ",\"name\":\"", name,
                    "\",\"args\":{", arguments, "}}");
  }

  const int rank_;
  const absl::Duration offset_;
  std::string text_;
};

bool IsPass(const OpSpan& span) { return span.detail.microbatch >= 0; }

std::string NameOf(const OpSpan& span) {
  const auto& [operation, bytes, ranks, chunk, microbatch] = span.detail;
  if (IsPass(span)) return absl::StrCat(span.op, " mb ", microbatch, " chunk ", chunk);
  if (operation == nullptr) return span.op;
  return absl::StrCat(absl::StripPrefix(span.op, kCommunicationPrefix), " ", operation);
}

std::string ArgumentsOf(const OpSpan& span) {
  const auto& [operation, bytes, ranks, chunk, microbatch] = span.detail;
  if (IsPass(span)) return absl::StrCat("\"microbatch\":", microbatch, ",\"chunk\":", chunk);
  if (operation == nullptr) return "";
  return absl::StrCat("\"axis\":\"", absl::StripPrefix(span.op, kCommunicationPrefix),
                      "\",\"bytes\":", bytes, ",\"ranks\":", ranks);
}

// Slices of one thread lie within one another or apart. On a GPU times are some microseconds
// inexact, so an op could seem to end behind its pass.
void AddCalls(int thread, std::vector<OpSpan> calls, Events& events) {
  std::stable_sort(calls.begin(), calls.end(), [](const OpSpan& a, const OpSpan& b) {
    return a.begin != b.begin ? a.begin < b.begin : IsPass(a) && !IsPass(b);
  });
  MonotonicTime pass_end;
  for (const OpSpan& call : calls) {
    if (call.detail.operation != nullptr && call.detail.ranks <= 1) continue;
    const bool is_within = !IsPass(call) && call.begin < pass_end;
    const MonotonicTime end = is_within ? std::min(call.end, pass_end) : call.end;
    if (IsPass(call)) pass_end = call.end;
    events.Slice(thread, NameOf(call), ArgumentsOf(call), call.begin, end);
  }
}

}  // namespace

std::string TraceEvents(const RankTrace& trace, const ClockOffset& clock) {
  Events events(trace.rank, clock.offset);
  const absl::string_view separator = trace.place.empty() ? "" : ": ";
  events.Name(-1, absl::StrCat("rank ", trace.rank, separator, trace.place));
  int64_t left_out = 0;
  for (const TraceStream& stream : trace.streams) left_out += stream.calls.left_out;
  events.Label(absl::StrCat(
      absl::StrFormat("clock exact to %.1f us", absl::ToDoubleMicroseconds(clock.error)),
      left_out > 0 ? absl::StrCat(", ", left_out, " calls left out for want of room") : ""));
  events.Name(kStepsThread, "steps");
  for (const TraceStep& step : trace.steps) {
    events.Slice(kStepsThread, absl::StrCat("step ", step.step), "", step.begin, step.end);
  }
  for (size_t i = 0; i < trace.streams.size(); ++i) {
    const int thread = kStepsThread + 1 + static_cast<int>(i);
    events.Name(thread, trace.streams[i].name);
    AddCalls(thread, trace.streams[i].calls.spans, events);
  }
  return events.Take();
}

ClockOffset OffsetBy(const std::vector<RoundTrip>& trips) {
  CONVENE_CHECK(!trips.empty());
  const RoundTrip& best =
      *std::min_element(trips.begin(), trips.end(), [](const RoundTrip& a, const RoundTrip& b) {
        return a.received - a.sent < b.received - b.sent;
      });
  const absl::Duration half = (best.received - best.sent) / 2;
  return {.offset = best.other - (best.sent + half), .error = half};
}

}  // namespace convene::worker

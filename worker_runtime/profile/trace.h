// The text of a trace: what the streams of a rank did in some steps, for Perfetto (ui.perfetto.dev)
// and chrome://tracing. Format: Chrome's Trace Event Format, as a JSON object.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "tools/base/clock.h"
#include "worker_runtime/device/op_profile.h"

namespace convene::worker {

// One stream's calls, a thread of the trace.
struct TraceStream {
  std::string name;
  OpSpans calls;
};

// One step, from its begin to its result.
struct TraceStep {
  int64_t step = 0;
  MonotonicTime begin;
  MonotonicTime end;
};

// One rank's part, a process of the trace; its times are by the rank's own clock.
struct RankTrace {
  int rank = 0;
  std::string place;  // "pp 1, dp 0"
  std::vector<TraceStep> steps;
  std::vector<TraceStream> streams;
};

// The rank's clock beside rank 0's: rank 0's time = the rank's time + `offset`, exact to `error`.
struct ClockOffset {
  absl::Duration offset;
  absl::Duration error;
};

// PURE. The three parts of a file, in their order: the head; each rank's events, with
// kTraceBetween between two ranks; the end.
inline constexpr absl::string_view kTraceHead = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";
inline constexpr absl::string_view kTraceBetween = ",\n";
inline constexpr absl::string_view kTraceEnd = "\n]}\n";

// PURE. Times of the events are rank 0's clock's, in microseconds: counted from a step of rank 0,
// another rank's might be below 0, and these Perfetto leaves out. A pass of the pipeline is a slice
// that holds the slices of its ops. Calls of groups of one rank are left out: they move nothing.
// The process's label says the clock's error, and how many calls were left out.
std::string TraceEvents(const RankTrace& trace, const ClockOffset& clock);

// PURE. The offset by the round trip that was the shortest, as NTP takes it: the other clock was
// read in the middle of it, but for an error of half the trip. REQUIRES: there is one.
struct RoundTrip {
  MonotonicTime sent;
  MonotonicTime other;  // by rank 0's clock
  MonotonicTime received;
};
ClockOffset OffsetBy(const std::vector<RoundTrip>& trips);

}  // namespace convene::worker

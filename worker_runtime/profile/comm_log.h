// The table of a rank's collectives, by axis: bytes, time, bandwidth, and how much of the time was
// hidden behind arithmetic.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "tools/base/clock.h"
#include "worker_runtime/device/op_profile.h"

namespace convene::worker {

// PURE. Adds up the calls of a run, and keeps those of two steps at most. Not thread-safe.
class CommLog {
 public:
  // `streams`: the calls in each stream of the device since the last Add, the main one first. One
  // Add a step: a collective that lasts longer than two steps is thought to be hidden less than it
  // was.
  void Add(absl::Span<const OpSpans> streams);

  // One line an axis and operation, the longest first. Groups of one rank are left out. Ends with a
  // newline.
  //
  //   communication of 20 steps    calls/step    MB/call  ms/step  algbw GB/s  busbw GB/s  hidden
  //   dp reduce_scatter                   4.0      1.049     2.00       2.097       1.049   80.0%
  //   pp recv                             8.0      0.033     0.30           -           -       -
  //
  // MB and GB are powers of ten. ms/step is the sum over the calls, from their begin in their
  // stream to their end, so it includes the wait for slower ranks. algbw = bytes / time, busbw =
  // algbw BusFactor (collective.h). hidden: the part of the time during which the main stream was
  // in an op that is no communication. A message's time is only what the main stream waited for it,
  // which is not hidden; so it has no bandwidth.
  std::string Text(int64_t steps);

 private:
  struct Line {
    const char* op = nullptr;
    const char* operation = nullptr;
    int ranks = 0;
    int64_t calls = 0;
    int64_t bytes = 0;
    double seconds = 0;
    double hidden_seconds = 0;
  };
  struct Interval {
    MonotonicTime begin;
    MonotonicTime end;
  };

  double HiddenSeconds(const OpSpan& span) const;
  void Count(const OpSpan& span, double hidden_seconds);
  // Counts the collectives of other streams that ended by `known`, up to which the main stream's
  // work is known.
  void Settle(MonotonicTime known);

  std::vector<Line> lines_;
  std::vector<Interval> computing_;  // of the main stream in the last two calls, in order
  size_t computing_before_ = 0;      // how many of them are of the last call but one
  std::vector<OpSpan> pending_;      // of the other streams
  int64_t left_out_ = 0;
};

}  // namespace convene::worker

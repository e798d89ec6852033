// A rank's collectives, by axis: bytes, time, and how much of the time was hidden behind
// arithmetic.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "absl/types/span.h"
#include "tools/base/clock.h"
#include "worker_runtime/device/op_profile.h"

namespace convene::worker {

// The calls of one operation of one axis on one rank. Ranks send it to each other as it is.
struct CommLine {
  char axis[32] = {};       // "dp"; longer names are cut
  char operation[16] = {};  // "reduce_scatter"
  int64_t ranks = 0;        // of the group
  int64_t calls = 0;
  int64_t bytes = 0;
  double seconds = 0;         // from the calls' begin in their stream to their end
  double hidden_seconds = 0;  // the part of it during which the main stream computed
};
static_assert(std::is_trivially_copyable_v<CommLine>);

// Whether both are of one axis and operation.
bool IsSameLine(const CommLine& a, const CommLine& b);

// All of one rank.
struct CommSheet {
  std::vector<CommLine> lines;
  int64_t left_out = 0;  // calls for which a step had no room
};

// PURE. Adds up the calls of a run, and keeps those of two steps at most. Not thread-safe.
class CommLog {
 public:
  // `streams`: the calls in each stream of the device since the last Add, the main one first. One
  // Add a step: a collective that lasts longer than two steps is thought to be hidden less than it
  // was.
  void Add(absl::Span<const OpSpans> streams);

  // Of all calls so far; a line an axis and operation, in the order of their first calls. Groups of
  // one rank are left out.
  CommSheet Sheet();

 private:
  struct Interval {
    MonotonicTime begin;
    MonotonicTime end;
  };

  double HiddenSeconds(const OpSpan& span) const;
  void Count(const OpSpan& span, double hidden_seconds);
  // Counts the collectives of other streams that ended by `known`, up to which the main stream's
  // work is known.
  void Settle(MonotonicTime known);

  CommSheet sheet_;
  std::vector<Interval> computing_;  // of the main stream in the last two calls, in order
  size_t computing_before_ = 0;      // how many of them are of the last call but one
  std::vector<OpSpan> pending_;      // of the other streams
};

}  // namespace convene::worker

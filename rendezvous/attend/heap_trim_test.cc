#include "rendezvous/attend/heap_trim.h"

#include <catch2/catch.hpp>

#include "absl/time/time.h"
#include "tools/base/clock.h"

namespace convene::rendezvous {
namespace {

const MonotonicTime kBegin = MonotonicTime::FromEpoch(absl::Hours(1));

// The last of them 1 s after kBegin.
HeapTrim AfterEnds(int count) {
  HeapTrim trim;
  for (int i = 1; i < count; ++i) trim.StreamEnded(kBegin);
  trim.StreamEnded(kBegin + absl::Seconds(1));
  return trim;
}

TEST_CASE("the heap is trimmed once, when many streams have ended and the last one 5 s ago") {
  HeapTrim trim = AfterEnds(HeapTrim::kManyStreams);
  const MonotonicTime due = kBegin + absl::Seconds(6);
  CHECK(trim.due_at() == due);
  CHECK(!trim.Take(due - absl::Nanoseconds(1)));
  CHECK(trim.Take(due));
  CHECK(!trim.Take(due + absl::Hours(1)));
  CHECK(trim.due_at() == MonotonicTime::InfiniteFuture());
}

TEST_CASE("few streams that ended are not worth a trim") {
  HeapTrim trim = AfterEnds(HeapTrim::kManyStreams - 1);
  CHECK(trim.due_at() == MonotonicTime::InfiniteFuture());
  CHECK(!trim.Take(kBegin + absl::Hours(1)));
}

TEST_CASE("streams that go on ending put the trim off") {
  HeapTrim trim = AfterEnds(HeapTrim::kManyStreams);
  trim.StreamEnded(kBegin + absl::Seconds(5));
  CHECK(trim.due_at() == kBegin + absl::Seconds(10));
}

}  // namespace
}  // namespace convene::rendezvous

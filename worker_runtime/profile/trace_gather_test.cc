#include "worker_runtime/profile/trace_gather.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cerrno>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "tools/base/files.h"
#include "tools/base/testing/status_testing.h"
#include "tools/base/testing/temp_dir.h"
#include "tools/base/thread.h"
#include "worker_runtime/comm/testing/loopback.h"

namespace convene::worker {
namespace {

// The clock of another node.
class ShiftedClock final : public Clock {
 public:
  explicit ShiftedClock(absl::Duration shift) : shift_(shift) {}
  MonotonicTime Now() override { return Clock::Real().Now() + shift_; }
  void SleepFor(absl::Duration /*duration*/) override {}

 private:
  const absl::Duration shift_;
};

// The last call is another op.
RankTrace TraceOf(int rank, MonotonicTime begin, size_t calls = 1) {
  std::vector<OpSpan> spans(calls, {.op = "MatMul", .begin = begin, .end = begin});
  spans.push_back({.op = "AdamW", .begin = begin, .end = begin});
  return {.rank = rank,
          .steps = {{.step = 2, .begin = begin, .end = begin + absl::Milliseconds(1)}},
          .streams = {{.name = "compute", .calls = {.spans = std::move(spans)}}}};
}

TEST_CASE("the events of ranks with other clocks come in rank 0's time, in pieces") {
  const LoopbackWorld world(3);
  std::vector<std::unique_ptr<Collective>> host = world.Group({0, 1, 2}, "host");
  const MonotonicTime begin = Clock::Real().Now();
  // The clock of rank 2 is behind, as on a node that was started later.
  const absl::Duration shifts[] = {absl::ZeroDuration(), absl::Seconds(100), absl::Seconds(-7)};
  std::string file;
  size_t longest = 0;
  std::vector<absl::Status> ends(3);
  {
    std::vector<Thread> ranks;
    for (int rank = 0; rank < 3; ++rank) {
      ranks.emplace_back("rank", [&, rank] {
        ShiftedClock clock(shifts[rank]);
        // More than a piece of rank 1.
        const RankTrace trace = TraceOf(rank, begin + shifts[rank], rank == 1 ? 20'000 : 1);
        ends[rank] = GatherTrace(trace, clock, *host[rank], [&](absl::string_view piece) {
          absl::StrAppend(&file, piece);
          longest = std::max(longest, piece.size());
        });
      });
    }
    for (Thread& rank : ranks) rank.Join();
  }
  for (const absl::Status& end : ends) REQUIRE_OK(end);
  CHECK(longest == 1 << 20);
  CHECK(absl::StartsWith(file, kTraceHead));
  CHECK(absl::EndsWith(file, kTraceEnd));
  for (const std::string rank : {"0", "1", "2"}) {
    const std::string slice =
        "{\"ph\":\"X\",\"pid\":" + rank + ",\"tid\":1,\"name\":\"step 2\",\"ts\":";
    const size_t at = file.find(slice);
    REQUIRE(at != std::string::npos);
    const double begin_us = absl::ToDoubleMicroseconds(begin.since_epoch());
    CHECK(std::abs(std::strtod(file.c_str() + at + slice.size(), nullptr) - begin_us) < 20'000);
    const std::string last = "{\"ph\":\"X\",\"pid\":" + rank + ",\"tid\":2,\"name\":\"AdamW\",";
    CHECK(file.find(last) != std::string::npos);
  }
}

TEST_CASE("a rank that does not come ends the trace within the timeout, on all") {
  const LoopbackWorld world(3, {.timeout = absl::Milliseconds(200)});
  std::vector<std::unique_ptr<Collective>> host = world.Group({0, 1, 2}, "host");
  std::vector<absl::Status> ends(3);
  const auto gather = [&](int rank) {
    ends[rank] = GatherTrace(TraceOf(rank, Clock::Real().Now()), Clock::Real(), *host[rank],
                             [](absl::string_view) {});
  };
  Thread rank_2("rank", [&] { gather(2); });
  gather(0);
  rank_2.Join();
  CHECK_STATUS(ends[0], absl::StatusCode::kDeadlineExceeded, "host");
  CHECK_FALSE(ends[2].ok());
}

TEST_CASE("a trace's file has its name once it is whole, and else leaves nothing") {
  const testing::TempDir folder;
  const std::string path = folder.File("trace.json");
  {
    const auto file = TraceFile::Open(path);
    REQUIRE_OK(file);
    (*file)->Write("a part");
  }
  CHECK(ListDirectory(folder.path())->empty());
  const auto file = TraceFile::Open(path);
  REQUIRE_OK(file);
  (*file)->Write("all ");
  (*file)->Write("of it");
  CHECK_FALSE(IsFile(path));
  REQUIRE_OK((*file)->Finish());
  CHECK(*ReadFile(path) == "all of it");
  CHECK(ListDirectory(folder.path())->size() == 1);
  CHECK_STATUS(TraceFile::Open(folder.File("no/trace.json")).status(), absl::StatusCode::kNotFound,
               "no/trace.json");
}

TEST_CASE("a trace's file on a full disk says so at the end, and leaves nothing") {
  const testing::TempDir folder;
  {
    const auto file = TraceFile::Open(folder.File("trace.json"));
    REQUIRE_OK(file);
    {
      const ScopedFileFault fault(
          [](FileOp op, const std::string&) { return op == FileOp::kWrite ? ENOSPC : 0; });
      (*file)->Write("lost");
    }
    (*file)->Write("not half of it");
    CHECK_STATUS((*file)->Finish(), absl::StatusCode::kResourceExhausted, "trace.json");
  }
  CHECK(ListDirectory(folder.path())->empty());
}

}  // namespace
}  // namespace convene::worker

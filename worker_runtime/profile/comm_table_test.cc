#include "worker_runtime/profile/comm_table.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "tools/base/testing/status_testing.h"
#include "tools/base/thread.h"
#include "worker_runtime/comm/testing/loopback.h"
#include "worker_runtime/profile/comm_gather.h"

namespace convene::worker {
namespace {

CommLine Line(const std::string& axis, const std::string& operation, int64_t calls,
              double seconds) {
  CommLine line = {.ranks = 4, .calls = calls, .bytes = calls * 4'000'000, .seconds = seconds};
  std::copy(axis.begin(), axis.end(), line.axis);
  std::copy(operation.begin(), operation.end(), line.operation);
  return line;
}

TEST_CASE("a line has the median rank's figures, and names the ranks of the two ends") {
  std::vector<CommSheet> sheets(4);
  const double seconds[] = {0.08, 0.02, 0.04, 0.06};
  for (int rank = 0; rank < 4; ++rank) {
    sheets[rank].lines = {Line("dp", "reduce_scatter", 2, seconds[rank])};
    sheets[rank].lines[0].hidden_seconds = seconds[rank] * 0.5;
  }
  CHECK(CommTable(sheets, 2) ==
        "communication of 2 steps     ranks calls/step    MB/call   ms/step  algbw GB/s  "
        "busbw GB/s  hidden  shortest, longest ms/step\n"
        "dp reduce_scatter                4        1.0      4.000     20.00       0.200       "
        "0.150   50.0%  10.00 rank 1, 40.00 rank 0\n");
}

TEST_CASE("lines come by their medians, and each says how many ranks have it") {
  const std::vector<CommSheet> sheets = {
      {.lines = {Line("pp", "send", 1, 0.5), Line("tp", "all_reduce", 1, 0.01)}},
      {.lines = {Line("tp", "all_reduce", 1, 0.02)}, .left_out = 3},
      {.lines = {Line("tp", "all_reduce", 1, 9), Line("dp", "all_gather", 1, 0.03)},
       .left_out = 4}};
  const std::string text = CommTable(sheets, 1);
  const size_t pp = text.find("\npp send                          1 ");
  const size_t dp = text.find("\ndp all_gather                    1 ");
  const size_t tp = text.find("\ntp all_reduce                    3 ");
  REQUIRE(tp != std::string::npos);
  CHECK(pp < dp);
  CHECK(dp < tp);
  CHECK_THAT(text, Catch::Contains("-           -       -  500.00 rank 0, 500.00 rank 0\n"));
  CHECK_THAT(text, Catch::Contains("  30.00 rank 2, 30.00 rank 2\n"));
  CHECK_THAT(text, Catch::EndsWith("not in this table: 7 calls, for which a step had no room\n"));
  CHECK(CommTable(sheets, 0).empty());
}

// The answer that each rank of the world gets.
std::vector<absl::StatusOr<std::vector<CommSheet>>> Gather(const LoopbackWorld& world,
                                                           const std::vector<CommSheet>& sheets) {
  std::vector<std::unique_ptr<Collective>> host = world.Group({0, 1, 2}, "host");
  std::vector<absl::StatusOr<std::vector<CommSheet>>> all(sheets.size());
  std::vector<Thread> ranks;
  for (size_t rank = 0; rank < sheets.size(); ++rank) {
    ranks.emplace_back("rank", [&, rank] { all[rank] = GatherComm(sheets[rank], *host[rank]); });
  }
  for (Thread& rank : ranks) rank.Join();
  return all;
}

TEST_CASE("all ranks get the lines of all, of ranks with none, too") {
  const std::vector<CommSheet> sheets = {
      {.lines = {Line("pp", "send", 1, 0.5), Line("tp", "all_reduce", 2, 0.01)}},
      {.left_out = 3},
      {.lines = {Line("tp", "all_reduce", 3, 0.25)}}};
  for (const auto& gathered : Gather(LoopbackWorld(3), sheets)) {
    REQUIRE_OK(gathered);
    REQUIRE(gathered->size() == 3);
    for (size_t rank = 0; rank < 3; ++rank) {
      const CommSheet& sheet = (*gathered)[rank];
      CHECK(sheet.left_out == sheets[rank].left_out);
      REQUIRE(sheet.lines.size() == sheets[rank].lines.size());
      for (size_t i = 0; i < sheet.lines.size(); ++i) {
        CHECK(IsSameLine(sheet.lines[i], sheets[rank].lines[i]));
        CHECK(sheet.lines[i].seconds == sheets[rank].lines[i].seconds);
      }
    }
  }
}

TEST_CASE("a rank that does not come ends the table within the timeout") {
  for (const auto& gathered :
       Gather(LoopbackWorld(3, {.timeout = absl::Milliseconds(200)}), {CommSheet(), CommSheet()})) {
    CHECK_STATUS(gathered.status(), absl::StatusCode::kDeadlineExceeded, "host");
  }
}

}  // namespace
}  // namespace convene::worker

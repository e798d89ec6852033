#include "worker_runtime/schedule/schedule_csv.h"

#include <catch2/catch.hpp>
#include <cstdint>
#include <random>
#include <string>

#include "tools/base/testing/status_testing.h"
#include "worker_runtime/schedule/generators.h"
#include "worker_runtime/schedule/testing/write_csv.h"

namespace convene::worker {
namespace {

TEST_CASE("a schedule as a file") {
  const absl::StatusOr<Schedule> schedule = MakeSchedule("zb-v", 2, 0, 2);
  REQUIRE_OK(schedule);
  CHECK(WriteCsv(*schedule) ==
        "0F0,0F1,3F0,3I0,3W0,3F1,3I1,3W1,0I0,0W0,0I1,0W1\n"
        "1F0,2F0,1F1,2F1,2I0,2W0,1I0,1W0,2I1,2W1,1I1,1W1\n");
}

TEST_CASE("a file as PyTorch writes it: waiting cells, line ends of two bytes, overlapped pairs") {
  const absl::StatusOr<Schedule> schedule = ReadCsv(
      "0F0,0F1,,,0B0,,0B1\r\n"
      ",1F0,1B0, (1F1;1B1)OVERLAP_F_B\r\n\r\n");
  REQUIRE_OK(schedule);
  CHECK(WriteCsv(*schedule) == "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n");
  CHECK(schedule->placement == ChunkPlacement{0, 1});
  CHECK(schedule->microbatches == 2);
}

TEST_CASE("a validation schedule has no backward pass") { REQUIRE_OK(ReadCsv("0F0,0F1\n1F0,1F1")); }

TEST_CASE("what is wrong with a file is said with its place") {
  struct Row {
    const char* text;
    const char* problem;
  };
  for (const Row& row : {
           Row{"", "row 1 has no action"},
           Row{"0F0,0B0\n\n1F0,1B0", "row 2 has no action: each row is a rank, and holds a chunk"},
           Row{"0F0,0X0",
               "row 1, column 2: '0X0' is no action: write the chunk, F, B, I or W, and"},
           Row{"0F0,0B0\n0F0,1F", "row 2, column 2: '1F' is no action"},
           Row{"0F0,F0", "row 1, column 2: 'F0' is no action"},
           Row{"0F-1", "row 1, column 1: '0F-1' is no action"},
           Row{"0F0,+1F0", "'+1F0' is no action"},
           Row{"0F0,0B0 0B1", "row 1, column 2: '0B0 0B1' is no action"},
           Row{"0F0;0B0", "row 1, column 1: '0F0;0B0' is no action"},
           Row{"(0F0,0B0", "row 1, column 1: '(0F0' is no action"},
           Row{"0F0,99999999999F0", "column 2: '99999999999F0' is no action"},
           Row{"0F0,0SEND_F0",
               "'0SEND_F0' is no action: write the chunk, F, B, I or W, and the "
               "microbatch, such as 3F0 (messages are not written"},
           Row{"0F0,0B0,2147483647F2147483647",
               "names chunk 2147483647 and microbatch 2147483647: 2147483648 chunks x 2147483648 "
               "microbatches need 4611686018427387904 forwards (F), and it has 2"},
           Row{"0F0,0F1,2F0,2F1,2F2,2F3",
               "3 chunks x 4 microbatches need 12 forwards (F), and it "
               "has 6"},
           // No chunk can be missing without another one's forward standing twice.
           Row{"0F0,2F0,2F0", "rank 0, action 2 (2F0): action 1 has done it"},
           Row{"0F0,0B0\n1F0,0B0,1B0", "rank 1, action 1 (0B0): rank 0 holds chunk 0"},
           Row{"0F0,0F0,0B0", "rank 0, action 1 (0F0): action 0 has done it; take one of them out"},
           Row{"0F0,0B0,0I0", "rank 0, action 2 (0I0): action 1 has done it"},
           Row{"0F0,0B0,0W0", "rank 0, action 2 (0W0): action 1 has done it"},
           Row{"0B0,0F0", "rank 0, action 0 (0B0): put 0F0 before it"},
           Row{"0F0,0W0,0I0", "rank 0, action 1 (0W0): put 0I0 before it"},
           Row{"0F0,0F1,0B0", "rank 0 ends without 0B1"},
           Row{"0F0,0I0", "rank 0 ends without 0W0"},
           Row{"0F0,1F0,1F1,0B0,1B0,1B1,0F2", "2 chunks x 3 microbatches need 6 forwards"},
           Row{"0F0,0F1,1F0,1F0,1B0", "rank 0, action 3 (1F0): action 2 has done it"},
           Row{"0F0,0B0,0F1,0B1\n1F0,1F1,1B1,1B0",
               "rank 0, action 1 (0B0): the ranks wait for each other: it needs rank 1, action 3 "
               "(1B0), but that rank waits at rank 1, action 1 (1F1); put one of them further "
               "ahead"},
       }) {
    INFO(row.text);
    CHECK_STATUS(ReadCsv(row.text), absl::StatusCode::kInvalidArgument, row.problem);
  }
}

TEST_CASE("a file with wrong bytes is refused, or is the file of another schedule") {
  std::mt19937_64 random(9);
  const std::string text = WriteCsv(*MakeSchedule("zb-v", 2, 0, 2));
  int refused = 0;
  for (int round = 0; round < 5000; ++round) {
    std::string wrong = text;
    for (uint64_t edits = 1 + random() % 3; edits > 0; --edits) {
      constexpr absl::string_view kBytes = "0123F B,I;W\n\r()-\0";
      wrong[random() % wrong.size()] = kBytes[random() % kBytes.size()];
    }
    const absl::StatusOr<Schedule> schedule = ReadCsv(wrong);
    if (!schedule.ok()) {
      ++refused;
    } else {
      REQUIRE(WriteCsv(*ReadCsv(WriteCsv(*schedule))) == WriteCsv(*schedule));
    }
  }
  CHECK(refused > 2500);
}

}  // namespace
}  // namespace convene::worker

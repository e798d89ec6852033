#include "worker_runtime/schedule/lower.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tools/base/testing/status_testing.h"
#include "worker_runtime/schedule/generators.h"
#include "worker_runtime/schedule/schedule_csv.h"
#include "worker_runtime/schedule/simulate.h"
#include "worker_runtime/schedule/testing/cost.h"
#include "worker_runtime/schedule/testing/play.h"
#include "worker_runtime/schedule/testing/write_csv.h"

namespace convene::worker {
namespace {

Schedule Make(absl::string_view name, int ranks, int virtual_stages, int microbatches) {
  const absl::StatusOr<Schedule> schedule = MakeSchedule(name, ranks, virtual_stages, microbatches);
  REQUIRE_OK(schedule);
  return *schedule;
}

std::vector<RankPlan> Plans(const Schedule& schedule, int receives_ahead = 1) {
  const absl::StatusOr<std::vector<RankPlan>> plans = Lower(schedule, receives_ahead);
  REQUIRE_OK(plans);
  return *plans;
}

std::string Text(const std::vector<Instruction>& instructions) {
  std::string text;
  for (const Instruction& instruction : instructions) {
    const std::string compute = ToString(instruction.compute);
    absl::StrAppend(&text, text.empty() ? "" : " ");
    switch (instruction.kind) {
      case InstructionKind::kReceive:
        absl::StrAppend(&text, instruction.peer, ">", compute);
        break;
      case InstructionKind::kCompute:
        absl::StrAppend(&text, compute);
        break;
      case InstructionKind::kSend:
        absl::StrAppend(&text, compute, ">", instruction.peer);
        break;
    }
  }
  return text;
}

// All shapes of all schedules, and validation on their placements.
template <typename Check>
void ForEverySchedule(int most_ranks, Check check) {
  for (const char* name : {"gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "dualpipe-v"}) {
    const int most_virtual_stages = name == std::string("interleaved") ? 4 : 0;
    for (int v = most_virtual_stages == 0 ? 0 : 2; v <= most_virtual_stages; ++v) {
      for (int ranks = 1; ranks <= most_ranks; ++ranks) {
        for (int microbatches = 1; microbatches <= 16; ++microbatches) {
          INFO(name << ", " << ranks << " ranks, " << v << " virtual stages, " << microbatches
                    << " microbatches");
          const Schedule schedule = Make(name, ranks, v, microbatches);
          check(schedule);
          check(ForwardOnly(schedule.placement, microbatches));
        }
      }
    }
  }
}

// A schedule of random chunks on random ranks, whose computes come in a random order that their
// needs allow.
Schedule Random(std::mt19937_64& random) {
  const auto draw = [&](int end) { return static_cast<int>(random() % end); };
  const int ranks = 1 + draw(5);
  const int chunks = ranks + draw(6);
  Schedule schedule = {{}, 1 + draw(6), std::vector<std::vector<Compute>>(ranks)};
  for (int chunk = 0; chunk < chunks; ++chunk) {
    schedule.placement.push_back(chunk < ranks ? chunk : draw(ranks));
  }
  std::shuffle(schedule.placement.begin(), schedule.placement.end(), random);
  std::vector<Compute> ready;
  for (int microbatch = 0; microbatch < schedule.microbatches; ++microbatch) {
    ready.push_back({ComputeKind::kForward, 0, microbatch});
  }
  while (!ready.empty()) {
    std::swap(ready[draw(static_cast<int>(ready.size()))], ready.back());
    const Compute done = ready.back();
    ready.pop_back();
    schedule.ranks[schedule.placement[done.chunk]].push_back(done);
    const auto backward = draw(2) == 0 ? ComputeKind::kBackward : ComputeKind::kBackwardInput;
    if (done.kind == ComputeKind::kForward && done.chunk + 1 < chunks) {
      ready.push_back({ComputeKind::kForward, done.chunk + 1, done.microbatch});
    } else if (done.kind == ComputeKind::kForward) {
      ready.push_back({backward, done.chunk, done.microbatch});
    } else if (done.kind != ComputeKind::kBackwardWeight && done.chunk > 0) {
      ready.push_back({backward, done.chunk - 1, done.microbatch});
    }
    if (done.kind == ComputeKind::kBackwardInput) {
      ready.push_back({ComputeKind::kBackwardWeight, done.chunk, done.microbatch});
    }
  }
  return schedule;
}

void RequirePlays(const Schedule& schedule, const std::vector<RankPlan>& plans, uint64_t seed) {
  REQUIRE_OK(Play(schedule, plans, SendRule::kBuffered, seed));
  REQUIRE_OK(Play(schedule, plans, SendRule::kWaitsForReceive, seed));
}

TEST_CASE("a rank's instructions, written out") {
  // 1>0B0: receives from rank 1 what 0B0 reads. 0F0>1: sends what 0F0 wrote to rank 1.
  const std::vector<RankPlan> plans = Plans(Make("1f1b", 2, 0, 3));
  CHECK(Text(plans[0].instructions) ==
        "0F0 0F0>1 0F1 0F1>1 1>0B0 0B0 1>0B1 0F2 0F2>1 0B1 1>0B2 0B2");
  CHECK(Text(plans[1].instructions) ==
        "0>1F0 1F0 0>1F1 1B0 1B0>0 1F1 1B1 1B1>0 0>1F2 1F2 1B2 1B2>0");
  CHECK(Text(Plans(Make("1f1b", 2, 0, 2), /*receives_ahead=*/0)[0].instructions) ==
        "0F0 0F0>1 0F1 0F1>1 1>0B0 0B0 1>0B1 0B1");
  CHECK(Text(Plans(ForwardOnly({0, 1}, 2))[0].instructions) == "0F0 0F0>1 0F1 0F1>1");
}

TEST_CASE("chunks 1 and 2 of zb-v lie on one rank and send each other nothing") {
  const std::vector<RankPlan> plans = Plans(Make("zb-v", 2, 0, 3));
  CHECK(Text(plans[1].instructions) ==
        "0>1F0 1F0 0>1F1 2F0 2F0>0 1F1 2F1 2F1>0 0>1F2 0>2I0 2I0 2W0 1F2 1I0 1I0>0 1W0 0>2I1 2F2 "
        "2F2>0 2I1 2W1 0>2I2 1I1 1I1>0 2I2 1I2 1I2>0 1W1 2W2 1W2");
  for (int microbatch = 0; microbatch < 3; ++microbatch) {
    CHECK(plans[1].gradients.of.at({1, microbatch}) == plans[1].gradients.of.at({2, microbatch}));
  }
}

TEST_CASE("receives of one sender are posted in the order of its sends") {
  // Rank 0 makes chunk 1's input before chunk 3's, rank 1 reads them the other way round.
  using enum ComputeKind;
  const Schedule schedule = {
      {0, 1, 0, 1},
      2,
      {{{kForward, 0, 0}, {kForward, 2, 0}, {kForward, 0, 1}, {kForward, 2, 1}},
       {{kForward, 1, 0}, {kForward, 1, 1}, {kForward, 3, 0}, {kForward, 3, 1}}}};
  const std::vector<RankPlan> plans = Plans(schedule, /*receives_ahead=*/0);
  CHECK(Text(plans[1].instructions) == "0>1F0 1F0 1F0>0 0>3F0 0>1F1 1F1 1F1>0 3F0 0>3F1 3F1");
  RequirePlays(schedule, plans, 1);
}

TEST_CASE("1f1b keeps the microbatches in flight, and two or three gradients") {
  const std::vector<RankPlan> plans = Plans(Make("1f1b", 4, 0, 16));
  for (int rank = 0; rank < 4; ++rank) {
    CHECK(plans[rank].saved.count == 4 - rank);
    CHECK(plans[rank].deferred.count == 0);
    // Each microbatch in flight has its input; one comes in and one or two go out beside them.
    CHECK(plans[rank].activations.count <= (rank > 0 ? 4 - rank : 0) + 2);
    CHECK(plans[rank].gradients.count <= 3);
    for (int microbatch = 0; microbatch < 16; ++microbatch) {
      CHECK(plans[rank].saved.of.at({rank, microbatch}) == microbatch % (4 - rank));
    }
  }
}

TEST_CASE("an input from the same rank has its slot from the forward that writes it") {
  const std::vector<RankPlan> plans = Plans(Make("zb-v", 4, 0, 16));
  CHECK(plans[3].saved.count == 8);
  CHECK(plans[3].activations.count == 10);
}

TEST_CASE("weight halves that wait have slots of their own") {
  const std::vector<RankPlan> plans = Plans(Make("zb-h1", 4, 0, 16));
  for (int rank = 0; rank < 4; ++rank) {
    CHECK(plans[rank].saved.count == 4);
    CHECK(plans[rank].deferred.count == rank + 1);
  }
}

TEST_CASE(
    "the head keeps a gradient until the input half, for its own chunk's microbatches alone") {
  const std::vector<RankPlan> plans = Plans(Make("zb-h1", 4, 0, 16));
  CHECK(plans[2].heads.count == 0);
  CHECK(plans[3].heads.count == 1);
  CHECK(plans[3].heads.of.size() == 16);
  CHECK(Plans(Make("zb-v", 4, 0, 16))[0].heads.count == 1);
  CHECK(Plans(Make("gpipe", 2, 0, 5))[1].heads.count == 5);
}

TEST_CASE("no plan deadlocks, loses data, or saves more than the simulator counts") {
  ForEverySchedule(8, [&](const Schedule& schedule) {
    const std::vector<RankPlan> plans = Plans(schedule);
    const std::vector<int> peak = CostOf(schedule, *Simulate(schedule)).saved_peak;
    for (size_t rank = 0; rank < plans.size(); ++rank) {
      REQUIRE(plans[rank].saved.count == peak[rank]);
    }
    RequirePlays(schedule, plans, 1);
  });
}

TEST_CASE("however early receives are posted") {
  ForEverySchedule(4, [&](const Schedule& schedule) {
    for (const int receives_ahead : {0, 2, 5, 1000}) {
      RequirePlays(schedule, Plans(schedule, receives_ahead), receives_ahead);
    }
  });
}

// A new kernel may wait until all that its rank has queued is done (comm/nccl/README.md).
TEST_CASE("a receive stands before no compute that starts earlier than its message's") {
  int ahead_of_another = 0;
  ForEverySchedule(4, [&](const Schedule& schedule) {
    const Timeline timeline = *Simulate(schedule);
    for (const int receives_ahead : {1, 3, 1000}) {
      const std::vector<RankPlan> plans = Plans(schedule, receives_ahead);
      for (size_t rank = 0; rank < plans.size(); ++rank) {
        std::vector<Compute> posted;
        for (int position = 0; const Instruction& instruction : plans[rank].instructions) {
          if (instruction.kind == InstructionKind::kReceive) posted.push_back(instruction.compute);
          if (instruction.kind != InstructionKind::kCompute) continue;
          std::erase(posted, instruction.compute);
          for (const Compute& reader : posted) {
            const int source = SourceOf(schedule, reader);
            const int made = timeline.passes[source][reader.microbatch].Along(reader.kind);
            REQUIRE(timeline.start[schedule.placement[source]][made] <=
                    timeline.start[rank][position]);
            ++ahead_of_another;
          }
          ++position;
        }
      }
    }
  });
  CHECK(ahead_of_another > 1000);
}

TEST_CASE("random schedules survive the CSV file and are played to their end") {
  std::mt19937_64 random(7);
  for (int round = 0; round < 1000; ++round) {
    INFO("round " << round);
    const Schedule schedule = Random(random);
    const absl::StatusOr<Schedule> read = ReadCsv(WriteCsv(schedule));
    REQUIRE_OK(read);
    REQUIRE(read->ranks == schedule.ranks);
    REQUIRE(read->placement == schedule.placement);
    REQUIRE(read->microbatches == schedule.microbatches);
    const std::vector<RankPlan> plans = Plans(schedule, round % 4);
    const std::vector<int> peak = CostOf(schedule, *Simulate(schedule)).saved_peak;
    for (size_t rank = 0; rank < plans.size(); ++rank) {
      REQUIRE(plans[rank].saved.count == peak[rank]);
    }
    RequirePlays(schedule, plans, round);
  }
}

TEST_CASE("two computes that change places make a schedule that is refused, or one that plays") {
  std::mt19937_64 random(8);
  int refused = 0;
  for (int round = 0; round < 1000; ++round) {
    Schedule schedule = Random(random);
    std::vector<Compute>& list = schedule.ranks[random() % schedule.ranks.size()];
    std::swap(list[random() % list.size()], list[random() % list.size()]);
    const absl::StatusOr<std::vector<RankPlan>> plans = Lower(schedule);
    if (plans.ok()) {
      RequirePlays(schedule, *plans, round);
    } else {
      ++refused;
    }
  }
  CHECK(refused > 500);
}

TEST_CASE("the referee misses no instruction that is left out") {
  for (const char* name : {"1f1b", "interleaved", "zb-v"}) {
    const Schedule schedule = Make(name, 3, 0, 5);
    const std::vector<RankPlan> plans = Plans(schedule);
    for (size_t rank = 0; rank < plans.size(); ++rank) {
      for (size_t i = 0; i < plans[rank].instructions.size(); ++i) {
        INFO(name << ", rank " << rank << ", instruction " << i);
        std::vector<RankPlan> changed = plans;
        changed[rank].instructions.erase(changed[rank].instructions.begin() + i);
        REQUIRE_FALSE(Play(schedule, changed, SendRule::kBuffered, 1).ok());
      }
    }
  }
}

TEST_CASE("the referee sees each way in which a plan can be wrong") {
  const Schedule schedule = Make("1f1b", 2, 0, 3);
  struct Row {
    void (*change)(std::vector<RankPlan>&);
    const char* problem;
  };
  for (const Row& row : {
           Row{[](auto& plans) { std::swap(plans[0].instructions[0], plans[0].instructions[1]); },
               "rank 0, instruction 0 (send of 0F0): what it reads does not lie in its slot"},
           Row{[](auto& plans) { std::swap(plans[1].instructions[0], plans[1].instructions[2]); },
               "rank 1, instruction 1 (1F0): nobody receives its input"},
           Row{[](auto& plans) {
                 std::swap(plans[0].instructions[0], plans[0].instructions[2]);
                 std::swap(plans[0].instructions[1], plans[0].instructions[3]);
               },
               "rank 1, instruction 1 (1F0): it receives 0F1"},
           Row{[](auto& plans) {
                 plans[0].saved.of[{0, 1}] = plans[0].saved.of[{0, 0}];
               },
               "rank 0, instruction 2 (0F1): it writes over what is needed"},
           // Each rank waits for the other's message before it sends its own.
           Row{[](auto& plans) {
                 const auto first = plans[0].instructions.begin();
                 std::rotate(first + 2, first + 4, first + 6);
                 const auto second = plans[1].instructions.begin();
                 std::rotate(second + 3, second + 5, second + 6);
               },
               "deadlock"},
       }) {
    std::vector<RankPlan> plans = Plans(schedule);
    row.change(plans);
    CHECK_STATUS(Play(schedule, plans, SendRule::kBuffered, 1),
                 absl::StatusCode::kFailedPrecondition, row.problem);
  }
}

TEST_CASE("a send without buffers is found to deadlock where a slot is too early written anew") {
  // Both ranks write their next output into the slot whose receive the other posts after that.
  const Schedule schedule = Make("gpipe", 2, 0, 4);
  std::vector<RankPlan> plans = Plans(schedule, /*receives_ahead=*/0);
  for (auto& [key, slot] : plans[0].activations.of) slot = 0;
  RequirePlays(schedule, plans, 1);  // later outputs wait, but the receives come
  std::vector<Instruction>& late = plans[1].instructions;
  // Rank 1 posts the second receive before the first one's: the first is never taken.
  std::rotate(late.begin(), late.begin() + 3, late.begin() + 4);
  CHECK_FALSE(Play(schedule, plans, SendRule::kWaitsForReceive, 1).ok());
}

}  // namespace
}  // namespace convene::worker

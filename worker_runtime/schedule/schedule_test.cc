#include "worker_runtime/schedule/schedule.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <vector>

#include "worker_runtime/schedule/testing/simulate.h"

namespace convene::worker {
namespace {

using Schedules = std::vector<std::vector<Action>>;

Schedules AllStages(int stages, int microbatches) {
  Schedules schedules;
  for (int stage = 0; stage < stages; ++stage) {
    schedules.push_back(OneForwardOneBackward(stages, stage, microbatches));
  }
  return schedules;
}

template <typename Check>
void ForEveryShape(Check check) {
  for (int stages = 1; stages <= 8; ++stages) {
    for (int microbatches = 1; microbatches <= 16; ++microbatches) {
      INFO(stages << " stages, " << microbatches << " microbatches");
      check(stages, microbatches);
    }
  }
}

TEST_CASE("one forward one backward, written out") {
  CHECK(ToString(OneForwardOneBackward(1, 0, 2)) == "forward 0, backward 0, forward 1, backward 1");
  CHECK(ToString(OneForwardOneBackward(2, 0, 2)) ==
        "forward 0, send_activation 0, forward 1, send_activation 1, recv_gradient 0, backward 0, "
        "recv_gradient 1, backward 1");
  CHECK(ToString(OneForwardOneBackward(2, 1, 2)) ==
        "recv_activation 0, forward 0, backward 0, send_gradient 0, recv_activation 1, forward 1, "
        "backward 1, send_gradient 1");
  // Fewer microbatches than stages: all go forward, then all backward.
  CHECK(ToString(OneForwardOneBackward(4, 1, 2)) ==
        "recv_activation 0, forward 0, send_activation 0, recv_activation 1, forward 1, "
        "send_activation 1, recv_gradient 0, backward 0, send_gradient 0, recv_gradient 1, "
        "backward 1, send_gradient 1");
}

TEST_CASE("no shape deadlocks or leaves work undone") {
  ForEveryShape([](int stages, int microbatches) {
    const Simulation simulation = Simulate(AllStages(stages, microbatches), 1, 2);
    INFO(simulation.problem);
    REQUIRE(simulation.ok);
  });
}

TEST_CASE("the bubble is (p - 1) / (m + p - 1) when forward and backward cost the same") {
  ForEveryShape([](int stages, int microbatches) {
    const Simulation simulation = Simulate(AllStages(stages, microbatches), 1, 1);
    REQUIRE(simulation.makespan == Approx(2.0 * (microbatches + stages - 1)));
    REQUIRE(simulation.bubble_fraction ==
            Approx((stages - 1.0) / (microbatches + stages - 1)).margin(1e-12));
  });
}

TEST_CASE("a stage holds as many microbatches as it says, at most those behind it and itself") {
  ForEveryShape([](int stages, int microbatches) {
    const Simulation simulation = Simulate(AllStages(stages, microbatches), 1, 2);
    for (int stage = 0; stage < stages; ++stage) {
      REQUIRE(simulation.in_flight_max[stage] == ActivationSlots(stages, stage, microbatches));
      REQUIRE(simulation.in_flight_max[stage] <= stages - stage);
    }
  });
}

TEST_CASE("a saved activation's slot is free when the next microbatch takes it") {
  ForEveryShape([](int stages, int microbatches) {
    for (int stage = 0; stage < stages; ++stage) {
      std::vector<int> holder(ActivationSlots(stages, stage, microbatches), -1);
      for (const Action& action : OneForwardOneBackward(stages, stage, microbatches)) {
        int& slot = holder[action.microbatch % holder.size()];
        if (action.kind == ActionKind::kForward) {
          REQUIRE(slot == -1);
          slot = action.microbatch;
        } else if (action.kind == ActionKind::kBackward) {
          REQUIRE(slot == action.microbatch);
          slot = -1;
        }
      }
    }
  });
}

TEST_CASE("the simulator finds what is wrong with a schedule") {
  using enum ActionKind;
  struct Row {
    Schedules schedules;
    const char* problem;
  };
  for (const Row& row : {
           Row{{{{kRecvGradient, 0}}, {{kRecvActivation, 0}}},
               "stage 0 at #0 recv_gradient 0: deadlock"},
           Row{{{{kForward, 0}, {kSendActivation, 0}, {kRecvGradient, 0}, {kBackward, 0}},
                {{kForward, 0}}},
               "stage 1 at #0 forward 0: its activation has not been received"},
           Row{{{{kForward, 0}, {kForward, 1}, {kSendActivation, 1}}, {{kRecvActivation, 0}}},
               "stage 1 at #0 recv_activation 0: the next message is microbatch 1"},
           Row{{{{kForward, 0}, {kForward, 0}}}, "stage 0 at #1 forward 0: it is done twice"},
           Row{{{{kBackward, 0}}}, "stage 0 at #0 backward 0: it has not gone forward"},
           Row{{{{kForward, 0}}}, "stage 0 ends with unfinished microbatches"},
           Row{{{{kForward, 0}, {kSendActivation, 0}}},
               "stage 0 at #1 send_activation 0: there is no next stage"},
           Row{{{{kRecvActivation, 0}}},
               "stage 0 at #0 recv_activation 0: there is no previous stage"},
           Row{{{{kSendActivation, 0}}, {}},
               "stage 0 at #0 send_activation 0: it has not been computed"},
       }) {
    const Simulation simulation = Simulate(row.schedules, 1, 1);
    CHECK_FALSE(simulation.ok);
    CHECK_THAT(simulation.problem, Catch::StartsWith(row.problem));
  }
}

TEST_CASE("a message nobody receives is a problem") {
  using enum ActionKind;
  const Simulation simulation =
      Simulate({{{kForward, 0},
                 {kSendActivation, 0},
                 {kSendActivation, 0},
                 {kRecvGradient, 0},
                 {kBackward, 0}},
                {{kRecvActivation, 0}, {kForward, 0}, {kBackward, 0}, {kSendGradient, 0}}},
               1, 1);
  CHECK(simulation.problem == "messages between stages 0 and 1 were never received");
}

}  // namespace
}  // namespace convene::worker

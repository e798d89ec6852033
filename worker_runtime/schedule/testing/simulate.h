// PURE. Runs schedules without computing anything.
#pragma once

#include <string>
#include <vector>

#include "worker_runtime/schedule/schedule.h"

namespace convene::worker {

struct Simulation {
  bool ok = false;
  // Empty when ok; else which stage stands at which action and why: "stage 1 at #3 recv_activation
  // 1: deadlock, ...".
  std::string problem;
  double makespan = 0;             // in the unit of the costs
  double bubble_fraction = 0;      // share of stages x makespan in which a stage does nothing
  std::vector<int> in_flight_max;  // per stage: most microbatches forward and not yet backward
};

// Runs one list per stage, all starting at time 0. A stage does its actions in order; computing
// takes the given times, messages none; a receive blocks until the neighbour's matching send, sends
// never block. Messages of one kind between two neighbours arrive in the order sent, so a receive
// for another microbatch than the next message's is a problem, as are: a message to or from a stage
// that does not exist, a forward (backward) whose input has not been received, a send of what has
// not been computed, work done twice, a backward without its forward, microbatches left unfinished,
// and messages left unreceived.
Simulation Simulate(const std::vector<std::vector<Action>>& schedules, double forward_time,
                    double backward_time);

}  // namespace convene::worker

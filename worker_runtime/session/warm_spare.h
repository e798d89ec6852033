// A trainer as a spare of its agent: agent/warm/README.md tells the whole way.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tools/base/environment.h"

namespace convene::worker {

struct WarmProgram {
  std::string path;
  char** argv = nullptr;
  // The variables that the program sets for itself where it finds this environment.
  std::function<std::vector<std::pair<std::string, std::string>>(const EnvironmentLookup&)>
      settings;
  // In a spare, which has one thread, and the environment of the worker of this local rank but for
  // the variables of a rank: opens what a worker would open. It may start threads.
  std::function<void(int local_rank)> open;
  // Whether what `open` has opened can still be used.
  std::function<bool()> still_works;
};

// Does as the agent asks by contract::kWarm, and takes this variable out of the environment.
// "record": tells the agent that spares can be made of this command, and returns. "parent": forks
// spares whenever the agent asks; returns only in a spare that has become a worker, with the
// worker's environment, stdin, stdout and stderr. Without the variable it returns at once.
//
// A spare that cannot be what a new process would be (the program or a library has changed, or a
// variable that is no rank's, or the number of its CPUs, or its device has failed) tells the agent
// why, and loads the program anew in its own place. REQUIRES: one thread.
void ServeAsWarm(const WarmProgram& program);

}  // namespace convene::worker

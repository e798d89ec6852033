// A daemon, or several that take turns, several runs on it, their nodes, and everything that can go
// wrong, from one seed. First things break; then the world is kind, and every agent must get its
// answer in time.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "tests/sim/invariants.h"
#include "tests/sim/sim_agent.h"
#include "tests/sim/sim_daemon.h"
#include "tests/sim/simulation.h"
#include "tools/base/clock.h"

namespace convene::sim {

class World {
 public:
  // `simulation` outlives it. `has_standbys`: three daemons over one memory take turns.
  World(Simulation* simulation, bool has_standbys);

  // Runs the world to its end. A broken promise throws.
  void Run();

 private:
  void PlaceRun(int number);
  agent::Rules DrawRules(int number);
  void PlanFault();
  void Fault();
  void HurtDaemon();
  // Kills the leader or its machine, has it end in order, pauses it, or cuts it off. At times
  // nothing else breaks until another one leads: then no worker is restarted.
  void HurtLeader();
  // The daemon, or of several the one that leads; else any.
  SimDaemon& leader() const;
  // Kills the daemon, or has it end in order, and starts it again. At times nothing else breaks
  // meanwhile: then a daemon with its memory restarts no worker.
  void KillDaemon();
  // `hands_over`: in order.
  void EndDaemon(bool hands_over);
  // A scheduler stops all processes of a run at once, the daemon too or not, and continues them a
  // while later, one after the other. Then no worker may be restarted.
  void SuspendRun();
  // From now on nothing else breaks for `duration`; then the settled runs (among them `only`, "" =
  // all) must be in the epochs that they are in.
  void ExpectUndisturbed(absl::Duration duration, const std::string& only, const std::string& what);
  // A node that has succeeded is about to lose its connection. Nothing else breaks for a while;
  // then its epoch, if it goes on, must still have the store that it began with.
  void ExpectStoreKept(const SimAgent& agent);
  void ResumeAfter(absl::Duration pause, SimAgent& agent);
  void Hurt(SimAgent& agent);
  // Starts agents that ended or crashed again after a while.
  void Supervise(SimAgent& agent);
  void Calm();
  bool IsOver() const;

  Simulation& simulation_;
  Invariants invariants_;
  SimMemory memory_;
  std::vector<std::unique_ptr<SimDaemon>> daemons_;
  std::vector<std::unique_ptr<SimAgent>> agents_;
  const MonotonicTime calm_at_;
  absl::Duration longest_join_timeout_;  // of the runs
  MonotonicTime spared_until_;           // nothing breaks before
  bool is_calm_ = false;
};

}  // namespace convene::sim

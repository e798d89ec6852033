// One node: an agent process after another, each with the real machine (agent/core/machine.h), and
// workers that are only a plan of when and how they end.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "agent/core/machine.h"
#include "tests/sim/invariants.h"
#include "tests/sim/sim_daemon.h"
#include "tests/sim/simulation.h"
#include "tools/base/check.h"
#include "tools/base/clock.h"

namespace convene::sim {

// Not thread-safe.
class SimAgent {
 public:
  // `daemons`: by endpoint. The incarnations of its processes follow `before_first`.
  SimAgent(Simulation* simulation, std::vector<SimDaemon*> daemons, Invariants* invariants,
           std::string name, Incarnation before_first, agent::Rules rules)
      : simulation_(*simulation),
        daemons_(std::move(daemons)),
        invariants_(*invariants),
        name_(std::move(name)),
        rules_(std::move(rules)),
        incarnation_(before_first) {}

  const std::string& run() const { return rules_.hello.job_id; }
  bool is_up() const { return state_ != nullptr; }
  // It knows of its epoch: an Assignment that comes after a pause starts no worker.
  bool is_in_epoch() const {
    return is_up() &&
           (state_->phase == agent::Phase::kRunning || state_->phase == agent::Phase::kSucceeded);
  }
  bool is_paused() const { return is_paused_; }
  MonotonicTime paused_at() const { return paused_at_; }  // the last time
  bool is_cut() const { return is_cut_; }
  // All its workers have ended with 0, its epoch goes on, and it can be reached.
  bool has_succeeded() const {
    return is_up() && state_->phase == agent::Phase::kSucceeded && !is_paused_ && !is_cut_;
  }
  Epoch epoch() const { return state_->epoch; }  // REQUIRES: is_up()
  int64_t stores() const { return stores_; }     // started so far
  bool has_workers() const { return !workers_.empty() || has_leftovers_; }

  // ---- what happens to it ----

  void Start();  // REQUIRES: !is_up()
  // The workers die with the process. The kernel closes its connection, unless the whole machine
  // died.
  void Crash(bool whole_machine);
  void Pause();    // the workers run on
  void Suspend();  // the workers stop, too
  void Resume();
  void Cut();  // from the network
  void Heal();
  // The words that a cut held go on, where the cut is over.
  void GoOn();
  void LoseConnection(bool is_half_open);
  void FailWorker(const agent::ExitStatus& status);
  void Signal();
  void BeUnfit();  // as after a failed health check
  // From now on epochs that are left alone end well.
  void Calm();

  // Its workers do not outlive their epoch (invariants.h).
  void CheckFencing() const;

 private:
  struct Worker {
    int64_t group = 0;  // which workers: it rises with each start
    int local_rank = 0;
  };

  void Receive(agent::Event event);
  void Drain();
  void Take(const agent::Event& event);
  void PlanTimer();
  void EndWorker(Worker worker, const agent::ExitStatus& status);
  // Of processes that the workers left behind when all of them had succeeded.
  void PlanLeftoversEnd(absl::Duration wait);
  void PlanEnd(int local_rank, absl::Duration wait, const agent::ExitStatus& status);
  void PlanEnd(Worker worker, absl::Duration wait, const agent::ExitStatus& status);
  void PlanWork();
  void StopTime(bool is_stopped);  // of the workers
  void HangUp();

  void Do(const agent::OpenStream& action);
  void Do(const agent::CloseStream& action);
  void Do(const agent::Send& action);
  void Do(const agent::StartWorkers& action);
  void Do(const agent::StopWorkers& action);
  void Do(const agent::KillWorkers& action);
  void Do(const agent::RestWorkers& action);
  void Do(const agent::WakeWorkers& action);
  void Do(const agent::RestartStore& action);
  // Their rules ask for none.
  void Do(const agent::RunHealthCheck&) { CONVENE_CHECK(false); }
  void Do(const agent::CancelHealthCheck&) { CONVENE_CHECK(false); }
  void Do(const agent::Say&) {}
  void Do(const agent::Finish& action);
  // The process is gone, and with it all processes that it started.
  void End();
  // The present event may keep it from its place.
  void Disturb() { invariants_.OnDisturbed(incarnation_); }
  bool IsFaithful() const;

  Simulation& simulation_;
  const std::vector<SimDaemon*> daemons_;
  Invariants& invariants_;
  const std::string name_;
  const agent::Rules rules_;

  std::unique_ptr<agent::State> state_;  // none: no process
  int life_ = 0;                         // of the process
  Incarnation incarnation_;
  std::shared_ptr<Stream> stream_;
  std::vector<std::shared_ptr<Stream>> streams_;  // also those it left that may still hold words
  bool is_paused_ = false;
  MonotonicTime paused_at_;
  bool are_workers_stopped_ = false;  // suspended, or at rest
  bool is_cut_ = false;
  bool is_calm_ = false;
  std::deque<agent::Event> inbox_;
  bool is_draining_ = false;
  MonotonicTime timer_planned_ = MonotonicTime::InfiniteFuture();
  MonotonicTime awake_since_;

  int64_t stores_ = 0;
  std::set<int> workers_;  // local ranks that run
  bool has_leftovers_ = false;
  bool knows_success_ = false;  // of the job, of which its node has had its part
  int64_t group_ = 0;
  int64_t serial_ = 0;           // of their epoch (invariants.h)
  int64_t assigned_serial_ = 0;  // of the last Assignment that came
  bool has_failed_ = false;
  std::vector<std::function<void()>> put_off_;  // ends of workers that do not run
  MonotonicTime started_at_;
  bool tells_progress_ = false;
  int64_t first_step_ = 0;
};

}  // namespace convene::sim

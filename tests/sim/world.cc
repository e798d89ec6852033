#include "tests/sim/world.h"

#include <algorithm>
#include <csignal>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

namespace convene::sim {
namespace {

constexpr absl::Duration kFaults = absl::Seconds(90);
// Without faults each agent has its answer within the job's join timeout and this time, which
// covers a stop that has begun, an epoch's work, the longest back-off of epochs in vain, and the
// agents' search for the daemon.
constexpr absl::Duration kPatience = absl::Seconds(150);
constexpr absl::Duration kBetweenFaults = absl::Milliseconds(1500);
// Beyond every lease: by then every agent is back, or given up.
constexpr absl::Duration kUndisturbed = absl::Seconds(6);
// An agent whose connection was lost, and that nothing else disturbs.
constexpr absl::Duration kBackAgain = absl::Seconds(2);
// Of several daemons.
constexpr int kStandbys = 3;
constexpr absl::Duration kLeaseWithStandbys = absl::Seconds(20);
// The time that an etcd takes to find a leader.
constexpr absl::Duration kMemoryAway = absl::Seconds(2);
// Of a run that is suspended; its processes are continued within kResumed.
constexpr absl::Duration kLongestPause = absl::Seconds(30);
constexpr absl::Duration kResumed = absl::Milliseconds(500);

}  // namespace

World::World(Simulation* simulation, bool has_standbys)
    : simulation_(*simulation), calm_at_(simulation->now() + kFaults) {
  if (has_standbys || simulation_.Chance(0.7)) {
    memory_.journal = std::make_unique<SimJournal>(simulation);
  }
  for (int i = 0; i < (has_standbys ? kStandbys : 1); ++i) {
    daemons_.push_back(
        std::make_unique<SimDaemon>(simulation, &invariants_, &memory_, has_standbys));
  }
  const int runs = simulation_.Between(1, 3);
  for (int number = 0; number < runs; ++number) PlaceRun(number);
  PlanFault();
  simulation_.At(calm_at_, [this] { Calm(); });
}

agent::Rules World::DrawRules(int number) {
  agent::Rules rules;
  rules.endpoint = "sim:1";
  rendezvous::Hello& hello = rules.hello;
  const bool has_standbys = daemons_.size() > 1;
  if (has_standbys) {
    rules.endpoints = {"sim:1", "sim:2", "sim:3"};
    hello.lease = kLeaseWithStandbys;
  }
  // Every second run has the default times; in the others more happens.
  if (!has_standbys && simulation_.Chance(0.5)) {
    rules.connect_timeout = absl::Seconds(20);
    rules.stop_graces = {absl::Seconds(1), absl::Seconds(2), absl::Seconds(1)};
    rules.session_abort_grace = absl::Milliseconds(300);
    rules.kill_patience = absl::Seconds(5);
    hello.lease = absl::Seconds(2);
  }
  // A join timeout may also be shorter than the graces.
  if (!has_standbys && simulation_.Chance(0.5)) hello.join_timeout = absl::Seconds(8);
  hello.job_id = absl::StrCat("run", number);
  hello.nodes_max = simulation_.Between(1, 6);
  hello.nodes_min = simulation_.Between(1, hello.nodes_max);
  hello.nodes_expected =
      simulation_.Chance(0.5) ? simulation_.Between(hello.nodes_min, hello.nodes_max) : 0;
  hello.max_restarts = simulation_.Between(0, 20);
  hello.restart_window = absl::Seconds(simulation_.Chance(0.3) ? 20 : 0);
  hello.max_stuck_restarts = simulation_.Chance(0.3) ? simulation_.Between(1, 4) : 0;
  hello.spares = simulation_.Between(0, 2);
  hello.admission = absl::Seconds(simulation_.Chance(0.5) ? 1 : 0);
  hello.last_call = absl::Seconds(simulation_.Between(0, 1));
  longest_join_timeout_ = std::max(longest_join_timeout_, hello.join_timeout);
  return rules;
}

void World::PlaceRun(int number) {
  agent::Rules rules = DrawRules(number);
  rendezvous::Hello& hello = rules.hello;
  const int count = simulation_.Between(hello.nodes_min, hello.nodes_max + hello.spares + 2);
  const bool has_ranks = simulation_.Chance(0.5);
  const int racks = simulation_.Between(0, 3);
  std::vector<SimDaemon*> daemons;
  for (const std::unique_ptr<SimDaemon>& daemon : daemons_) daemons.push_back(daemon.get());
  for (int i = 0; i < count; ++i) {
    hello.host = absl::StrCat("node", simulation_.Chance(0.2) ? 0 : i);
    hello.node_rank = has_ranks ? i : -1;
    hello.local_world_size = simulation_.Between(1, 3);
    hello.role = absl::StrCat("role", i % (1 + number % 3));
    hello.may_host = daemons.size() == 1 && i % 2 == 1;
    if (racks > 0) hello.topology = absl::StrCat("rack", i % racks);
    const std::string name = absl::StrCat(hello.job_id, ".", i);
    const Incarnation before_first(1000 * (agents_.size() + 1));
    agents_.push_back(
        std::make_unique<SimAgent>(&simulation_, daemons, &invariants_, name, before_first, rules));
    SimAgent& agent = *agents_.back();
    const bool is_late = simulation_.Chance(0.3);
    simulation_.After(simulation_.Upto(absl::Seconds(is_late ? 60 : 3)), [&agent] {
      if (!agent.is_up()) agent.Start();
    });
  }
}

void World::PlanFault() {
  simulation_.After(simulation_.Upto(kBetweenFaults), [this] {
    if (is_calm_) return;
    if (simulation_.now() >= spared_until_) Fault();
    PlanFault();
  });
}

void World::Fault() {
  if (simulation_.Chance(0.04)) return HurtDaemon();
  if (simulation_.Chance(0.02)) return SuspendRun();
  SimAgent& agent = *agents_[simulation_.Between(0, static_cast<int>(agents_.size()) - 1)];
  if (agent.is_up()) {
    Hurt(agent);
  } else {
    Supervise(agent);
  }
}

SimDaemon& World::leader() const {
  for (const std::unique_ptr<SimDaemon>& daemon : daemons_) {
    if (daemon->leads()) return *daemon;
  }
  return *daemons_.front();
}

void World::HurtDaemon() {
  if (daemons_.size() > 1) return HurtLeader();
  SimDaemon& daemon = *daemons_.front();
  if (!daemon.is_up()) return;
  switch (simulation_.Between(0, daemon.has_journal() ? 3 : 1)) {
    case 0:
      return daemon.Pause(simulation_.Upto(absl::Seconds(5)));
    case 3:
      daemon.FillDisk(true);
      return simulation_.After(simulation_.Upto(absl::Seconds(10)),
                               [&daemon] { daemon.FillDisk(false); });
    default:
      return KillDaemon();
  }
}

void World::HurtLeader() {
  SimDaemon& hurt = leader();
  if (!hurt.leads()) return;
  const bool may_be_disturbed =
      simulation_.now() < hurt.reachable_since() + kUndisturbed ||
      std::any_of(daemons_.begin(), daemons_.end(),
                  [](const std::unique_ptr<SimDaemon>& daemon) { return !daemon->is_well(); });
  invariants_.NoteSettled(hurt.table(), hurt.Faithful());
  const absl::Duration away = simulation_.Upto(kLeaseWithStandbys * 2);
  const int how = simulation_.Between(0, 6);
  // etcd's leader dies at the same time, or alone.
  if (how >= 5 || simulation_.Chance(0.2)) {
    SimDaemon::LoseMemory(&simulation_, &memory_, simulation_.Upto(kMemoryAway));
  }
  if (how >= 5) {
    // The leader may give up, and lead again.
  } else if (how == 0) {
    hurt.Pause(away);
  } else if (how == 1) {
    hurt.Cut(true);
    simulation_.After(away, [this, &hurt] {
      hurt.Cut(false);
      for (const std::unique_ptr<SimAgent>& agent : agents_) agent->GoOn();
    });
  } else {
    if (how == 2) hurt.Resign();
    hurt.Kill(/*whole_machine=*/how == 3);
    simulation_.After(away, [&hurt] {
      if (!hurt.is_up()) hurt.Start();
    });
  }
  if (may_be_disturbed || simulation_.Chance(0.4)) return;
  ExpectUndisturbed(kLeaseWithStandbys * 2, "",
                    "the leader was lost, another one was there, and an epoch was broken for it");
}

void World::KillDaemon() {
  SimDaemon& daemon = *daemons_.front();
  const bool hands_over = !daemon.has_journal() && simulation_.Chance(0.5);
  if (!hands_over || simulation_.Chance(0.5)) return EndDaemon(hands_over);
  // It is told to end a while before: no epoch is formed then that no daemon goes on with.
  daemon.EndSoon();
  simulation_.After(simulation_.Upto(absl::Seconds(3)), [this, &daemon, life = daemon.life()] {
    if (daemon.is_up() && daemon.life() == life) EndDaemon(/*hands_over=*/true);
  });
}

void World::EndDaemon(bool hands_over) {
  SimDaemon& daemon = *daemons_.front();
  const bool was_asleep = simulation_.now() < daemon.reachable_since() + kUndisturbed;
  const bool was_remembered = daemon.is_remembered();
  const bool whole_machine = !hands_over && simulation_.Chance(0.2);
  if (hands_over) daemon.HandOver();
  daemon.Kill(whole_machine);
  const absl::Duration down = simulation_.Upto(absl::Seconds(4));
  // With a memory it may look up names and read files before its port opens.
  const absl::Duration opening = daemon.has_journal() && simulation_.Chance(0.3)
                                     ? simulation_.Upto(absl::Seconds(8))
                                     : absl::ZeroDuration();
  simulation_.After(down, [&daemon, opening] {
    if (!daemon.is_up()) daemon.Start("", opening);  // Else an agent took over.
  });
  if (whole_machine || was_asleep || simulation_.Chance(0.4)) return;
  if (!was_remembered) {
    spared_until_ = simulation_.now() + down + opening + kUndisturbed;
    return;
  }
  ExpectUndisturbed(down + opening + kUndisturbed, "",
                    "the daemon came back with its memory, and an epoch was broken for it");
}

void World::ExpectUndisturbed(absl::Duration duration, const std::string& only,
                              const std::string& what) {
  spared_until_ = simulation_.now() + duration;
  for (const std::string& run : invariants_.settled_runs()) {
    if (!only.empty() && run != only) continue;
    simulation_.At(spared_until_, [this, run, what, told = invariants_.told_count(run),
                                   newcomers = invariants_.newcomers(run)] {
      Expect(told == invariants_.told_count(run) || newcomers != invariants_.newcomers(run), what);
    });
  }
}

void World::ExpectStoreKept(const SimAgent& agent) {
  const SimDaemon& daemon = leader();
  const rendezvous::Job* const job = daemon.table().Find(agent.run());
  if (!agent.has_succeeded() || job == nullptr || !daemon.leads() || !daemon.is_well()) return;
  // A node that was cut off and is on the network again may not know yet that its epoch is over.
  if (agent.epoch() != job->state().epoch()) return;
  spared_until_ = simulation_.now() + kBackAgain;
  simulation_.At(
      spared_until_, [&agent, &daemon, epoch = job->state().epoch(), stores = agent.stores()] {
        const rendezvous::Job* const now = daemon.table().Find(agent.run());
        const bool goes_on = daemon.leads() && now != nullptr && now->state().epoch() == epoch &&
                             now->state().phase() == rendezvous::Phase::kRunning;
        Expect(!goes_on || agent.stores() == stores,
               "a node that had succeeded lost its connection, and its epoch the store");
      });
}

void World::SuspendRun() {
  const std::string run =
      agents_[simulation_.Between(0, static_cast<int>(agents_.size()) - 1)]->run();
  SimDaemon& daemon = leader();
  const rendezvous::Job* const job = daemon.table().Find(run);
  // A leader that is cut off or paused may lose its place while the run sleeps.
  if (job == nullptr || !daemon.leads() || (daemon.has_standbys() && !daemon.is_well())) return;
  // An agent that is paused already would go on at a time of its own.
  const auto is_paused = [&](const std::unique_ptr<SimAgent>& agent) {
    return agent->run() == run && agent->is_paused();
  };
  if (std::any_of(agents_.begin(), agents_.end(), is_paused)) return;
  const bool with_daemon = daemons_.size() == 1 && simulation_.Chance(0.5);
  const absl::Duration pause = simulation_.Upto(
      with_daemon ? kLongestPause : std::min(kLongestPause, job->policy().join_timeout * 0.75));
  const absl::Duration until_checked = pause + kResumed + kUndisturbed;
  if (simulation_.now() + until_checked > calm_at_) return;
  bool may_be_disturbed = simulation_.now() < daemon.reachable_since() + kUndisturbed;
  invariants_.NoteSettled(daemon.table(), daemon.Faithful());
  if (with_daemon) daemon.Pause(pause);
  for (const std::unique_ptr<SimAgent>& agent : agents_) {
    if (agent->run() != run || !agent->is_up()) continue;
    may_be_disturbed = may_be_disturbed || !agent->is_in_epoch();
    agent->Suspend();
    ResumeAfter(pause + simulation_.Upto(kResumed), *agent);
  }
  if (may_be_disturbed) return;
  ExpectUndisturbed(until_checked, run, "a run was suspended as a whole, and its epoch was broken");
}

void World::ResumeAfter(absl::Duration pause, SimAgent& agent) {
  // Not from a later pause: the agent may have crashed and started in this one.
  simulation_.After(pause, [&agent, at = agent.paused_at()] {
    if (agent.is_paused() && agent.paused_at() == at) agent.Resume();
  });
}

void World::Hurt(SimAgent& agent) {
  const auto later = [this, &agent](void (SimAgent::*end)(), bool (SimAgent::*is_so)() const) {
    simulation_.After(simulation_.Upto(absl::Seconds(8)), [&agent, end, is_so] {
      if ((agent.*is_so)()) (agent.*end)();
    });
  };
  agent::ExitStatus status;
  switch (simulation_.Between(0, 11)) {
    case 0:
      agent.Crash(/*whole_machine=*/simulation_.Chance(0.3));
      return Supervise(agent);
    case 1: {
      const bool is_half_open = simulation_.Chance(0.3);
      ExpectStoreKept(agent);
      return agent.LoseConnection(is_half_open);
    }
    case 2:
      if (agent.is_paused()) return;
      simulation_.Chance(0.5) ? agent.Pause() : agent.Suspend();
      return ResumeAfter(simulation_.Upto(absl::Seconds(8)), agent);
    case 3:
      if (agent.is_cut()) return;
      agent.Cut();
      return later(&SimAgent::Heal, &SimAgent::is_cut);
    case 4:
      return agent.Signal();
    case 5:
      return agent.BeUnfit();
    case 6:
    case 7:
      status.exit_code = 75;
      return agent.FailWorker(status);
    case 8:
    case 9:
      status.exit_code = 1;
      return agent.FailWorker(status);
    case 10:
      status.signal = SIGSEGV;
      return agent.FailWorker(status);
    default:
      return;
  }
}

void World::Supervise(SimAgent& agent) {
  simulation_.After(simulation_.Upto(absl::Seconds(6)), [this, &agent] {
    if (!is_calm_ && !agent.is_up()) agent.Start();
  });
}

void World::Calm() {
  simulation_.Note("the world is kind now");
  is_calm_ = true;
  for (const std::unique_ptr<SimAgent>& agent : agents_) {
    agent->Calm();
    if (agent->is_cut()) agent->Heal();
    if (agent->is_paused()) agent->Resume();
  }
}

bool World::IsOver() const {
  return is_calm_ && std::none_of(agents_.begin(), agents_.end(),
                                  [](const auto& agent) { return agent->is_up(); });
}

void World::Run() {
  while (!IsOver()) {
    Expect(simulation_.RunOne(), "nothing is left to happen, and agents still wait");
    for (const std::unique_ptr<SimAgent>& agent : agents_) agent->CheckFencing();
    Expect(simulation_.now() < calm_at_ + longest_join_timeout_ + kPatience,
           "agents still wait for their answer");
  }
}

}  // namespace convene::sim

// The daemon's table of jobs behind streams that break, in virtual time.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <variant>

#include "absl/status/status.h"
#include "rendezvous/attend/job_table.h"
#include "rendezvous/quorum/job.h"
#include "rendezvous/quorum/messages.h"
#include "tests/sim/invariants.h"
#include "tests/sim/sim_journal.h"
#include "tests/sim/simulation.h"
#include "tools/base/clock.h"
#include "tools/base/strong_int.h"

namespace convene::sim {

class SimDaemon;

// The things that the daemons of a world share: the memory of decisions, and, where they are
// several, the lease of the one that leads. It stands for etcd, which is away while it finds a
// leader of its own (LoseMemory).
struct SimMemory {
  std::unique_ptr<SimJournal> journal;  // may be null where there is one daemon
  int64_t last_stream = 0;
  int64_t term = 0;             // rises with each leader; 0: there is one daemon
  SimDaemon* leader = nullptr;  // null: nobody, or it resigned
  MonotonicTime leads_until;    // of its lease
  MonotonicTime away_until;     // it answers no request
};

// One stream: two ends that may learn of its end at different times, or one of them never. Each
// direction keeps its order; how long a word takes is luck. Words that are under way when the
// stream breaks are lost.
struct Stream {
  SimDaemon* daemon = nullptr;
  rendezvous::MemberId id;
  Incarnation incarnation;
  MonotonicTime opened_at;   // when its Hello was said
  bool is_broken = false;    // nothing gets through any more
  bool agent_left = false;   // the agent does not listen any more
  bool daemon_left = false;  // the daemon has ended it, or was told of its end
  MonotonicTime up_free;     // when the last word of each direction arrives
  MonotonicTime down_free;
  int64_t said_up = 0;  // words so far
  int64_t heard_up = 0;
  // Words held while the agent's or the daemon's network is cut: TCP would send them again when it
  // is back.
  std::function<bool()> is_cut;
  std::deque<std::function<void()>> held;
  // Whether the stream's agent has a place, hears, and will come back for it.
  std::function<bool()> is_faithful;
  // The agent's ear.
  std::function<void(rendezvous::DaemonEvent)> on_event;
  std::function<void(absl::Status)> on_end;
};

// With a journal words wait for the disk, as in rendezvous/attend/daemon.h. The daemon has a clock
// of its own, another one after each start. Not thread-safe.
//
// One of several daemons begins as a standby, which refuses connections. It leads when the lease of
// the leader before is over. The leader says and decides nothing once its tenure is over, which it
// knows by its own clock and which ends before the lease does; then it is a standby again. A
// leader that is paused meanwhile finds that out when it wakes up.
class SimDaemon {
 public:
  // `memory` outlives it. Without a journal it forgets everything when it is killed.
  SimDaemon(Simulation* simulation, Invariants* invariants, SimMemory* memory, bool has_standbys);

  bool is_up() const { return is_up_; }
  bool has_journal() const { return memory_.journal != nullptr; }
  // Whether everything that the daemon ever said would survive its death.
  bool is_remembered() const { return has_journal() && memory_.journal->is_current(); }
  bool has_standbys() const { return has_standbys_; }
  bool leads() const { return is_up_ && leads_ && is_open_; }
  bool is_cut() const { return is_cut_; }
  // It could lead at once, if it had to.
  bool is_well() const { return is_up_ && !is_cut_ && simulation_.now() >= paused_until_; }
  // Nothing listens there, and the machine refuses connections.
  bool refuses() const { return !leads() && !is_machine_down_ && !is_cut_; }
  // When an agent could last begin to reach it.
  MonotonicTime reachable_since() const { return reachable_since_; }
  const rendezvous::JobTable& table() const { return *table_; }

  // The agent's words, in the order they are said.
  void SayHello(const std::shared_ptr<Stream>& stream, const rendezvous::Hello& hello);
  void Say(const std::shared_ptr<Stream>& stream, Epoch epoch, rendezvous::AgentEvent event);
  // The agent's end is closed; the daemon hears of it.
  void HangUp(const std::shared_ptr<Stream>& stream);
  // Both ends hear of it, unless `is_half_open`: then the daemon does not.
  void Break(const std::shared_ptr<Stream>& stream, bool is_half_open);
  // The network is back: what was held goes on.
  void Resume(const std::shared_ptr<Stream>& stream);

  // The processes that hear it, have a place and will come back for it.
  std::set<Incarnation> Faithful() const;

  // Changes when its process is lost.
  int life() const { return life_; }

  void Kill(bool whole_machine);
  // The memory is away for so long. Its next leader gives the lease its full time once more, so
  // that it outlives what its owner counts with; a write that was under way may have happened.
  static void LoseMemory(Simulation* simulation, SimMemory* memory, absl::Duration duration);
  // From agents and from the memory, or no longer.
  void Cut(bool is_cut);
  // Ends its lease at once, as a leader does that ends in order; its Kill follows.
  void Resign() { memory_.leader = nullptr; }
  // It is told to end; its HandOver and its Kill follow.
  void EndSoon() {
    simulation_.Note("daemon: is told to end", "");
    table_->EndSoon(Incarnation());
  }
  // Tells the agents that it ends in order; its Kill follows. At times it is killed while it tells
  // them. REQUIRES: !has_journal().
  void HandOver();
  // `handed_over`: HandOver::state of the daemon before; "": none. `opens_after`: its clock and its
  // ticker run for so long before it takes connections.
  void Start(const std::string& handed_over = "",
             absl::Duration opens_after = absl::ZeroDuration());
  void Pause(absl::Duration duration);
  // The journal's disk is full, or no longer. REQUIRES: has_journal().
  void FillDisk(bool is_full);

 private:
  using Happening = std::function<void()>;

  // Through the network to the daemon, then `happen` unless the stream is over.
  void Up(const std::shared_ptr<Stream>& stream, Happening happen);
  void ArriveUp(const std::shared_ptr<Stream>& stream, int life, const Happening& happen);
  void Read(const std::shared_ptr<Stream>& stream, int life, const Happening& happen);
  // As Daemon's.
  void BeginServing();
  // Reads what has come during a pause.
  void ReadOn();
  void Down(const std::shared_ptr<Stream>& stream, Happening happen);
  void Forget(const std::shared_ptr<Stream>& stream);
  void Settle(rendezvous::Outbox outbox);
  void Leave(const rendezvous::Outbox::Item& item);
  // The work of one of several daemons all the time: it renews its lease, or tries to lead.
  void Campaign();
  void Lead();
  // The daemon is over, its process may live on. `ends_streams`: the agents hear of it.
  void LoseAll(bool ends_streams);
  // False, and no longer leading: the tenure is over.
  bool MayLead();
  // One of several hears of nothing while it is paused or cut.
  void WhenWell(Happening happen);
  // Nor does it write or hear of a write while the memory is away.
  void WhenMemoryAnswers(Happening happen);
  // Until when the leader may speak, whose lease was renewed just now: by its own clock.
  MonotonicTime EndOfTenure() const;
  void PlanTick();
  // Acts as the real daemon's thread "rdzv-journal", which writes or waits.
  void PlanWrite();
  void BeginWrite();
  void EndWrite(int64_t change);
  MonotonicTime Now() const { return simulation_.now() + clock_ahead_; }
  absl::Time WorldTime() const { return absl::UnixEpoch() + simulation_.now().since_epoch(); }

  Simulation& simulation_;
  Invariants& invariants_;
  SimMemory& memory_;
  const bool has_standbys_;
  std::unique_ptr<rendezvous::JobTable> table_ = std::make_unique<rendezvous::JobTable>();
  bool is_up_ = true;
  bool leads_ = true;
  bool is_open_ = true;  // it takes connections
  int64_t term_ = 0;
  MonotonicTime tenure_until_;
  // How fast the clock is by which it counts its tenure; what the table's clock is ahead is another
  // thing.
  const double clock_rate_;
  bool is_cut_ = false;
  bool is_machine_down_ = false;
  int life_ = 0;
  absl::Duration clock_ahead_;
  MonotonicTime paused_until_;
  std::deque<Happening> unread_;  // came during a pause
  MonotonicTime reachable_since_;
  MonotonicTime tick_planned_ = MonotonicTime::InfiniteFuture();
  std::map<rendezvous::MemberId, std::shared_ptr<Stream>> streams_;  // that the daemon attends to

  int64_t written_change_ = 0;
  MonotonicTime wrote_at_;
  MonotonicTime write_planned_ = MonotonicTime::InfiniteFuture();
  std::map<rendezvous::MemberId, std::deque<rendezvous::Outbox::Item>> held_;
};

}  // namespace convene::sim

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

// One stream: two ends that may learn of its end at different times, or one of them never. Each
// direction keeps its order; how long a word takes is luck. Words that are under way when the
// stream breaks are lost.
struct Stream {
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
  // Words held while the agent's network is cut: TCP would send them again when it is back.
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
class SimDaemon {
 public:
  // `has_journal`: else it forgets everything when it is killed.
  SimDaemon(Simulation* simulation, Invariants* invariants, bool has_journal);

  bool is_up() const { return is_up_; }
  bool has_journal() const { return journal_ != nullptr; }
  // Whether everything that the daemon ever said would survive its death.
  bool is_remembered() const { return journal_ != nullptr && journal_->is_current(); }
  // The daemon is down, and its machine refuses connections.
  bool refuses() const { return !is_up_ && !is_machine_down_; }
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
  // The agent's network is back: what was held goes on.
  void Resume(const std::shared_ptr<Stream>& stream);

  // The processes that hear it, have a place and will come back for it.
  std::set<Incarnation> Faithful() const;

  void Kill(bool whole_machine);
  // Tells the agents that it ends in order; its Kill follows. At times it is killed while it tells
  // them. REQUIRES: !has_journal().
  void HandOver();
  // `handed_over`: HandOver::state of the daemon before; "": none.
  void Start(const std::string& handed_over = "");
  void Pause(absl::Duration duration);
  // The journal's disk is full, or no longer. REQUIRES: has_journal().
  void FillDisk(bool is_full);

 private:
  using Happening = std::function<void()>;

  // Through the network to the daemon, then `happen` unless the stream is over.
  void Up(const std::shared_ptr<Stream>& stream, Happening happen);
  void ArriveUp(const std::shared_ptr<Stream>& stream, int life, const Happening& happen);
  void Read(const std::shared_ptr<Stream>& stream, int life, const Happening& happen);
  // Reads what has come during a pause.
  void ReadOn();
  void Down(const std::shared_ptr<Stream>& stream, Happening happen);
  void Forget(const std::shared_ptr<Stream>& stream);
  void Settle(rendezvous::Outbox outbox);
  void Leave(const rendezvous::Outbox::Item& item);
  void PlanTick();
  // Acts as the real daemon's thread "rdzv-journal", which writes or waits.
  void PlanWrite();
  void EndWrite(int64_t change);
  MonotonicTime Now() const { return simulation_.now() + clock_ahead_; }
  absl::Time WorldTime() const { return absl::UnixEpoch() + simulation_.now().since_epoch(); }

  Simulation& simulation_;
  Invariants& invariants_;
  std::unique_ptr<rendezvous::JobTable> table_ = std::make_unique<rendezvous::JobTable>();
  bool is_up_ = true;
  bool is_machine_down_ = false;
  int life_ = 0;
  absl::Duration clock_ahead_;
  MonotonicTime paused_until_;
  std::deque<Happening> unread_;  // came during a pause
  MonotonicTime reachable_since_;
  MonotonicTime tick_planned_ = MonotonicTime::InfiniteFuture();
  std::map<rendezvous::MemberId, std::shared_ptr<Stream>> streams_;  // that the daemon attends to
  int64_t last_id_ = 0;

  std::unique_ptr<SimJournal> journal_;  // may be null
  int64_t written_change_ = 0;
  MonotonicTime wrote_at_;
  MonotonicTime write_planned_ = MonotonicTime::InfiniteFuture();
  std::map<rendezvous::MemberId, std::deque<rendezvous::Outbox::Item>> held_;
};

}  // namespace convene::sim

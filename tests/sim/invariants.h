// The promises of the daemon and of the agents, checked after each event. A broken promise throws
// (simulation.h: Expect).
//
//   of the daemon's words     nothing to a stream that is over; no node is given up that may still
//                             stop its workers; each epoch is given out whole, with
//                             dense ranks and one story for all its nodes; one that is told again
//                             is told the same; epochs rise; a success is what every node's workers
//                             did
//   of the agents             no worker runs where an epoch begins, and none of an older epoch for
//                             longer than a lease after a newer one began, whether its agent can be
//                             reached or not; what workers left counts as a worker, until its agent
//                             knows that the job has succeeded. A success is told as the last
//                             worker ends, and no signal takes it away
//   of the table's state      counters agree with nodes; survivors keep their seats; the budget is
//                             not overdrawn; nobody excluded takes part without need; nothing that
//                             is due is left undone
//   of a daemon that is killed and comes back with all its memory
//                             no epoch that was told of is forgotten; each failure stays counted,
//                             at its time; exclusions end when they were to end; a node that was in
//                             its place, and comes back by itself, is awaited and gets that place
//
// The daemon's clock is not the world's; a time of the daemon's is called so.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "rendezvous/attend/job_table.h"
#include "rendezvous/quorum/job.h"
#include "rendezvous/quorum/messages.h"
#include "tools/base/clock.h"
#include "tools/base/strong_int.h"

namespace convene::sim {

// The time from a worker's kill to its end.
inline constexpr absl::Duration kDying = absl::Milliseconds(100);

// An epoch as it was decided. Serial numbers rise with every epoch of every run and outlive the
// daemon: a daemon that forgot everything, or was killed before the disk had an epoch, may give an
// epoch's number again.
struct Formation {
  std::string run;
  Epoch epoch;
  rendezvous::Assignment first;
  std::map<Incarnation, rendezvous::Assignment> given;
  bool is_told = false;  // some agent may know it
  int succeeded = 0;     // nodes whose workers all ended with 0, as they themselves know
  MonotonicTime superseded_at = MonotonicTime::InfiniteFuture();  // a newer one of the run was told
};

class Invariants {
 public:
  // ---- the daemon's words ----

  void OnJoin(rendezvous::MemberId id, Incarnation incarnation, const rendezvous::Hello& hello);
  void OnStreamOver(rendezvous::MemberId id) { over_.insert(id); }
  // The daemon has decided on this message; it may have to wait for the disk.
  void OnItem(const rendezvous::Outbox::Item& item);
  // The message leaves the daemon.
  void OnTold(MonotonicTime now, rendezvous::MemberId to, const rendezvous::DaemonEvent& event);
  // After each event of the daemon.
  void OnDaemonIdle(MonotonicTime now, MonotonicTime daemon_now, const rendezvous::JobTable& table);

  // ---- its death and return ----

  // `faithful`: the agents that hear it, have a place and will come back for it if nothing happens
  // to them.
  void OnDaemonKilled(const rendezvous::JobTable& table, const std::set<Incarnation>& faithful);
  // `is_trusted`: the daemon remembers everything that an agent was ever told.
  void OnDaemonStarted(MonotonicTime now, MonotonicTime daemon_now,
                       const rendezvous::JobTable& table, bool is_trusted);
  // A write of the present decisions begins; then they are on the disk.
  void OnWriteBegun() { being_written_ = exclusions_; }
  void OnWritten() { written_ = being_written_; }
  // Something has happened to the agent.
  void OnDisturbed(Incarnation incarnation) { faithful_.erase(incarnation); }
  // A daemon that sleeps hears nobody in time.
  void OnDaemonPaused() { faithful_.clear(); }
  // The runs whose epoch nothing but the workers can end: all its members are faithful, nobody else
  // is there. As of the last OnDaemonKilled() or NoteSettled().
  const std::set<std::string>& settled_runs() const { return settled_runs_; }
  void NoteSettled(const rendezvous::JobTable& table, const std::set<Incarnation>& faithful);
  // The number of epochs that the run's agents were told of, and of nodes that came anew: neither
  // rises when a settled run is left alone.
  int64_t told_count(const std::string& run) const { return Count(told_counts_, run); }
  int64_t newcomers(const std::string& run) const { return Count(newcomers_, run); }

  // ---- the agents ----

  // The formation that the last Assignment to `id` is part of.
  int64_t SerialOf(rendezvous::MemberId id) const { return serials_.at(id); }
  void OnNodeSucceeded(int64_t serial) { ++formations_.at(serial).succeeded; }
  // Whether an agent with that lease, which has not slept since `awake_since`, may have workers of
  // `serial`.
  bool MayRun(MonotonicTime now, int64_t serial, absl::Duration lease,
              MonotonicTime awake_since) const;

 private:
  // One run, as the daemon knows it.
  struct Told {
    Epoch epoch;
    int next_rank = 0;
    int next_global_rank = 0;
    struct Role {
      int next_rank = 0;
      int world_size = 0;  // as its nodes were told
    };
    std::map<std::string, Role> roles;
    int64_t serial = 0;
    std::map<Incarnation, int> seats;  // as of the last epoch that was checked
  };
  // One use of a run's name: its floor (job_state.h) is its own.
  using Use = std::pair<std::string, Epoch>;
  struct Failures {
    std::vector<MonotonicTime> at;  // the world's times
    int told = 0;                   // as of the last epoch told of
  };
  struct Joined {
    Incarnation incarnation;
    rendezvous::Hello hello;
    bool is_expected = false;  // it comes back for its place
  };

  static int64_t Count(const std::map<std::string, int64_t>& counts, const std::string& run) {
    const auto found = counts.find(run);
    return found == counts.end() ? 0 : found->second;
  }
  void OnAssignment(const Joined& to, rendezvous::MemberId id, Epoch epoch,
                    const rendezvous::Assignment& assignment);
  void BeginEpoch(const rendezvous::Hello& hello, Epoch epoch,
                  const rendezvous::Assignment& assignment);
  void CheckWhole(const Told& told) const;
  void CheckSeats(const rendezvous::Job& job, Told* told) const;
  void CheckNewEpoch(MonotonicTime daemon_now, const rendezvous::Job& job, const Told& told) const;
  void CountFailures(MonotonicTime now, MonotonicTime daemon_now, const rendezvous::Job& job);
  void CheckAwaited(const std::string& run, const rendezvous::Job* job);
  int64_t FindFormation(const std::string& run, Epoch epoch) const;
  void Restore(const std::string& run, const rendezvous::Job& job, bool is_trusted);
  void NoteExclusions(MonotonicTime now, MonotonicTime daemon_now, const rendezvous::Job& job);
  void CheckExclusions(MonotonicTime now, MonotonicTime daemon_now, const rendezvous::Job& job);

  std::map<rendezvous::MemberId, Joined> joined_;
  std::set<rendezvous::MemberId> over_;
  std::map<std::string, Told> told_;
  std::map<int64_t, Formation> formations_;
  std::map<std::string, int64_t> latest_;       // serial, by run
  std::map<std::string, int64_t> latest_told_;  // serial, by run
  // Epochs that the daemon must remember: serial, by run.
  std::map<std::string, int64_t> remembered_;
  std::map<std::string, int64_t> told_counts_;
  std::map<std::string, int64_t> newcomers_;
  std::map<rendezvous::MemberId, int64_t> serials_;
  std::set<std::string> new_epochs_;  // runs that have one since the daemon was last idle
  std::map<Use, Failures> failures_;
  // Ends of exclusions, at the world's times.
  using Exclusions = std::map<Use, std::map<rendezvous::NodeKey, MonotonicTime>>;
  Exclusions exclusions_;
  Exclusions being_written_;
  Exclusions written_;
  std::map<Incarnation, std::pair<std::string, Epoch>> faithful_;  // run, epoch; not back yet
  std::set<std::string> settled_runs_;
  int64_t last_serial_ = 0;
};

}  // namespace convene::sim

// PURE. The daemon's knowledge of one job, and how each event changes it. decide.h decides what
// follows; job.h tells the agents.
//
//              Join, Ready                 kForm                     kStop
//   (created) ------------> [ forming ] ----------> [ running ] ------------> [ stopping ]
//                               ^                                                  |
//                               +------- every surviving member said Ready --------+
//
//   any phase --kClose--> [ closed ]      the job's id may then be used again: the table makes a
//   new JobState above the old epochs
//
// A node here is one live stream, or a node that is away. After a restart of the daemon
// (job_record.h) every member is away until its process resumes its place, or until its lease ends,
// counted from the restart. Meanwhile it counts as a member that runs, or that owes a Ready. A
// member whose stream ends when all its workers have succeeded is cut off: it counts no more, and
// the record does not have it, but its process may resume its place for the rest of its lease, or
// until the epoch ends. The others may still use its store. The states of a node:
//
//   contesting --its rival is lost--> joining --Ready--> ready --chosen--> running --Ready after a
//   Stop--> ready
//
// A node that is excluded at its Ready (conduct.h) is cooling instead of ready, until it is let in
// again. When an epoch begins without a member of the epoch before, that member gives up its seat.
//
// Every message renews the lease. These also change the state:
// - Ready of a member: only with the current epoch (an older one crossed an Assignment on the
//   wire); of others: always
// - WorkerFailure, WorkersSucceeded: only of a member that runs, with the current epoch: news of a
//   node that the daemon has given up is ignored
// - Heartbeat with an epoch, of a node that never said Ready on this stream: it still runs workers
//   of an epoch that went on without it, and is told to stop (once)
// - Leave: always. A Leave that says that workers still run breaks the epoch, as [loss]; the node
//   stays a member, so that no epoch begins, until its second Leave or the end of its stream
//
// Blame. An epoch is broken by its first cause; later events are its echo (peers break because of
// the first) and are neither counted nor blamed. A [failure] counts one against the budget. A
// [loss] (a node is lost, or leaves) counts nothing, and hides the failures that come after it.
// [membership], exit code 75, is weak: a peer may notice a crash or a lost node and exit with 75
// before the daemon knows of the cause, so a later failure (which then counts) or loss takes its
// place. That cause cannot come too late: an agent reports its failure before its Ready on one
// ordered stream, and no epoch forms before every survivor is Ready. In the opposite order, a real
// failure is the echo of a node whose loss is noticed only later (a cut network is noticed after
// its lease). It is counted as a failure: when it arrives, the two cannot be told apart.
//
// A restart by [membership] is free, so that shrinking and growing cost nothing; but workers that
// always end with 75 would restart for ever. An epoch that ended so within kQuickEpoch, with the
// same nodes as the one before, was in vain. After kMostVainEpochs in a row each further one counts
// as a failure; decide.h makes each wait longer than the last.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "absl/time/time.h"
#include "rendezvous/quorum/admission.h"
#include "rendezvous/quorum/budget.h"
#include "rendezvous/quorum/conduct.h"
#include "rendezvous/quorum/messages.h"
#include "tools/base/clock.h"
#include "tools/base/strong_int.h"

namespace convene::rendezvous {

inline constexpr absl::Duration kQuickEpoch = absl::Seconds(10);
inline constexpr int kMostVainEpochs = 16;
// A daemon that looks at a deadline so much too late was itself asleep.
inline constexpr absl::Duration kAsleep = absl::Seconds(1);

// One stream of one agent; never used twice. 0 = nobody.
using MemberId = StrongInt<struct MemberIdTag, int64_t>;

enum class Phase { kForming, kRunning, kStopping, kClosed };

enum class NodeState { kContesting, kJoining, kReady, kCooling, kRunning };

// The cause of the current epoch's end, if it has ended.
enum class Cause { kNone, kMembership, kFailure, kLoss };

// The part of a node that a restarted daemon must know, too (job_record.h).
struct Member {
  std::string host;
  Incarnation incarnation;
  int node_rank = -1;
  int local_world_size = 1;
  std::string role = "default";
  std::string topology;
  absl::Duration lease;
  int seat = -1;        // its lasting place in the order of ranks (ranks.h); -1: never was a member
  int group_rank = -1;  // in the current epoch
  // In the current epoch.
  int first_global_rank = 0;
  int first_role_rank = 0;
  int role_world_size = 0;
  bool succeeded = false;
};

struct Node : Member {
  MemberId id;
  NodeState state = NodeState::kJoining;
  MonotonicTime joined_at;  // or resumed: never falls with rising ids
  MonotonicTime heard_at;
  MonotonicTime hello_said_at;             // Hello::said_at; recorded: none
  std::optional<WorkerProgress> progress;  // in the current epoch
  std::vector<RankProgress> ranks;         // the same, of each worker
  Ready store;                             // of the last Ready
  bool said_ready = false;                 // on this stream; away: since the epoch began
  bool told_to_stop = false;
  bool has_workers = false;   // joining: of an epoch that it was in on an earlier stream
  std::string straggler_why;  // running: it is excluded at its next Ready, for this; "": it is not
  bool is_leaving = false;    // running: its last workers end, it will not say Ready
  bool may_host = false;      // Hello::may_host
  bool away = false;          // recorded by an earlier daemon, or cut off; not yet back
  bool is_cut_off = false;    // away, because its stream ended after it had succeeded
  MemberId rival;             // contesting: the holder of the rank; else: the node that claims it

  bool is_member() const { return seat >= 0; }
};

// The part of a job, beside its members, that a restarted daemon must know, too.
struct JobFacts {
  Phase phase = Phase::kForming;
  Epoch floor;          // every epoch of this job is above it
  Epoch epoch;          // 0 before the first one
  Epoch highest_epoch;  // of all that any agent has seen
  // Nodes that are gone meanwhile count in both: a success stays a success.
  int epoch_size = 0;       // nodes that the current epoch began with
  int succeeded_count = 0;  // the nodes among them that succeeded
  RestartBudget budget;
  Conduct conduct;
  int vain_epochs = 0;  // in a row, before the current one
  Cause cause = Cause::kNone;
  std::string cause_text;
  std::optional<WorkerFailure> failure;  // of the current epoch, to blame for its end
  StopKind stop_kind = StopKind::kAbort;
  bool last_departure_was_leave = false;
  Outcome outcome = Outcome::kFailed;  // when closed
};

struct JobRecord;

// Invariant: the counters agree with the nodes. Value type; not thread-safe.
class JobState {
 public:
  JobState(MonotonicTime now, Epoch floor)
      : facts_{.floor = floor, .highest_epoch = floor},
        waiting_since_(now),
        forming_since_(now),
        last_word_(now) {}

  // The state as recorded: the members are away, with the identities from `first_id` on.
  JobState(MonotonicTime now, const JobRecord& record, MemberId first_id);
  void Record(MonotonicTime now, JobRecord* record) const;

  Phase phase() const { return facts_.phase; }
  Epoch epoch() const { return facts_.epoch; }
  Epoch floor() const { return facts_.floor; }
  // The number of epochs that this run of the job began before the current one. REQUIRES: an epoch
  // has begun.
  int attempt() const { return static_cast<int>(facts_.epoch.value() - facts_.floor.value() - 1); }
  Epoch highest_epoch() const { return facts_.highest_epoch; }
  const std::map<MemberId, Node>& nodes() const { return nodes_; }
  // nullptr when `id` is no node of this job (any more).
  const Node* Find(MemberId id) const;
  // The node that holds this explicit rank; nullptr when none does.
  const Node* FindNodeRank(int node_rank) const;
  // The node that is this same agent process; nullptr when there is none.
  const Node* FindProcess(const std::string& host, int node_rank, Incarnation incarnation) const;

  int ready_count() const { return ready_count_; }
  int joining_count() const { return joining_count_; }
  // Joining nodes whose workers of an earlier epoch are still being stopped.
  int old_workers_count() const { return old_workers_count_; }
  // The time when the last of these workers are dead, or no longer waited for.
  MonotonicTime old_workers_until() const { return old_workers_until_; }
  // The longest that a node of this job takes from a Stop to its Ready, as the nodes told.
  absl::Duration stop_limit() const { return stop_limit_; }
  // Members that have not said Ready since the Assignment.
  int running_count() const { return running_count_; }
  int member_count() const { return member_count_; }  // of the current epoch, still here
  int away_count() const { return away_count_; }      // since a restart of the daemon
  int epoch_size() const { return facts_.epoch_size; }
  int succeeded_count() const { return facts_.succeeded_count; }
  int failure_count() const { return facts_.budget.failure_count; }
  const RestartBudget& budget() const { return facts_.budget; }
  const Conduct& conduct() const { return facts_.conduct; }
  const Admission& admission() const { return admission_; }
  // Ready nodes that are no members, in the order of arrival. Before the first epoch they are the
  // nodes that will form it; later they wait for a seat.
  const std::set<MemberId>& bench() const { return bench_; }
  const std::set<MemberId>& cooling() const { return cooling_; }
  // When the node may take part again; in the past when that was forgotten. REQUIRES: `id` is a
  // node.
  MonotonicTime ExcludedUntil(MemberId id) const;
  Cause cause() const { return facts_.cause; }
  const std::string& cause_text() const { return facts_.cause_text; }
  const std::optional<WorkerFailure>& failure() const { return facts_.failure; }
  StopKind stop_kind() const { return facts_.stop_kind; }
  // Epochs in a row that ended in vain (see above), up to the latest that has ended. `next_size`:
  // nodes that the next epoch is to have.
  int VainEpochs(int next_size) const;
  // The time since which no epoch runs: the job's start, or its last Stop.
  MonotonicTime waiting_since() const { return waiting_since_; }
  // The time since which the job waits for nodes to join: its start, or when the last member had
  // stopped.
  MonotonicTime forming_since() const { return forming_since_; }
  // The time since which nodes_min nodes are ready without a break; none when fewer are ready.
  std::optional<MonotonicTime> minimum_since() const { return minimum_since_; }
  // No node is here, and the job need not wait for any: the last node left in order, or no epoch
  // ever began.
  bool is_abandoned() const {
    return nodes_.empty() && (facts_.last_departure_was_leave || facts_.epoch == Epoch());
  }
  // No node is here: each one there is has been away for its whole lease. Its workers are dead.
  bool IsDeserted(MonotonicTime now) const {
    return std::all_of(nodes_.begin(), nodes_.end(), [&](const auto& entry) {
      return entry.second.away && entry.second.heard_at + entry.second.lease <= now;
    });
  }
  // Whether the daemon is told to end, and no node here may go on with the job in its place.
  bool loses_daemon() const;
  // Whether this node's agent may go on with the job in the daemon's place. It has to know the
  // job: with a member's incarnation a stranger could take that member's place.
  bool MayHostNext(const Node& node) const {
    return node.may_host && node.is_member() && !node.is_leaving &&
           node.incarnation != ending_host_;
  }
  // The node that went last and did not come again, and how: "b left: SIGTERM". "": there is none.
  const std::string& last_departure() const { return last_departure_; }
  // No lease ends before this.
  MonotonicTime lease_watch() const { return lease_watch_; }
  MonotonicTime closed_at() const { return closed_at_; }
  Outcome outcome() const { return facts_.outcome; }

  // The daemon is told to end, with the process of this incarnation (0: of no node).
  void EndSoon(Incarnation host) {
    ends_soon_ = true;
    ending_host_ = host;
  }

  // --- Silence ---
  //
  // A node whose lease is over may be dead; where no node of the job is heard, it is more likely
  // that this daemon was stopped, that its network is gone, or that the whole job was stopped
  // (`scontrol suspend` stops daemon, agents and workers together, for hours, while every clock
  // runs on). Nodes speak each third of their lease. So where none was heard for half a lease,
  // nobody is judged: no lease ends and no deadline is looked at, until the next word (Hear), or
  // until this daemon has lived through `patience` without one. At that word the waits go on from
  // where they stood, and every lease begins anew. (After a silence of less than a lease, each
  // lease goes on instead: only the usual time between two words counts of the silence. So the
  // lease of a dead node ends, although the words of the others are late.) While an agent claims a
  // node's rank, the leases alone are judged as always. An agent judges its own lease by its own
  // clock, so a late judgement here makes no two epochs live (agent/core/machine.h).

  bool AllSilent(MonotonicTime now) const {
    return !nodes_.empty() && now - last_word_ > longest_lease_ / 2;
  }
  // Whether all are silent and none is given up yet; lease_watch() is then the end of the patience.
  bool WaitsForWord(MonotonicTime now, absl::Duration patience);
  // Some agent spoke, or its stream ended. Call it before what follows from that. Returns the
  // silence that is over, zero mostly.
  absl::Duration Hear(MonotonicTime now);

  // --- Events ---

  // `rival`: the node whose rank this one claims (it then only contests); 0 for none. REQUIRES:
  // `id` is new, the hello is valid.
  void Join(MonotonicTime now, MemberId id, Incarnation incarnation, const Hello& hello,
            MemberId rival, int nodes_min);

  struct Effect {
    bool changed = false;       // Decide may say something new
    bool tell_to_stop = false;  // it runs workers of an epoch that went on without it
  };
  // Handles every event but the Leave of a node without workers, for which Remove is called.
  // REQUIRES: `id` is a node.
  Effect Apply(MonotonicTime now, MemberId id, Epoch epoch, const AgentEvent& event, int nodes_min);

  // kDropped: it did not stop its workers. kUnfit: it left, and must not come back soon. kOutdated:
  // the daemon was restarted and its record of the node is old; the node itself is here.
  // kAllSilent: as kLost, but no node was heard, so this one is not to blame.
  enum class Departure { kLost, kLeft, kDropped, kUnfit, kOutdated, kAllSilent };
  // The stream is over. A contesting rival becomes a node (joining, or ready if it said so).
  // REQUIRES: `id` is a node.
  void Remove(MonotonicTime now, MemberId id, Departure departure, const std::string& why,
              int nodes_min);

  // Whether the end of its stream takes a node nothing: all its workers have succeeded, the epoch
  // goes on, and nobody claims its rank. REQUIRES: `id` is a node.
  bool KeepsPlace(MemberId id) const;
  // The stream of a node that keeps its place is over. REQUIRES: KeepsPlace(id).
  void CutOff(MemberId id);

  // The process of member `old` goes on as `id`, on another stream. REQUIRES: `old` is a member,
  // `id` is new.
  void Resume(MonotonicTime now, MemberId old, MemberId id, const Hello& hello);

  // Nodes can be heard from now on, and not before: the leases of the members that are away begin
  // now, and waits go on as after any silence.
  void RenewAway(MonotonicTime now);

  // Nodes that were silent for longer than their lease; contesting ones need not speak. A daemon
  // that was asleep cannot know which nodes were silent: every lease begins anew then. Cheap before
  // lease_watch(). REQUIRES: not all are silent, or their time is over.
  std::vector<MemberId> Expired(MonotonicTime now);

  // --- Decisions, carried out ---

  // `members` in the order of their group ranks, each with its seat; global ranks follow that
  // order, and so do the ranks among the workers of one role. All are ready.
  void BeginEpoch(MonotonicTime now, const std::vector<MemberId>& members,
                  const std::vector<int>& seats);
  void BeginStop(MonotonicTime now, StopKind kind);
  // A running node is excluded at its next Ready; with `why` "" it is not. REQUIRES: `id` is a
  // node.
  void SetStraggler(MemberId id, const std::string& why) { nodes_.at(id).straggler_why = why; }
  // Cooling nodes become ready.
  void Admit(MonotonicTime now, const std::vector<MemberId>& nodes, int nodes_min);
  void Close(MonotonicTime now, Outcome outcome);

 private:
  void Count(const Node& node, int sign);
  void Enter(Node& node, NodeState state);
  void Settle(MonotonicTime now, int nodes_min);
  bool ApplyReady(MonotonicTime now, Node& node, Epoch epoch, const Ready& ready);
  bool ApplyLeaving(MonotonicTime now, Node& node, const Leave& leave);
  bool ApplyFailure(MonotonicTime now, const Node& node, Epoch epoch, const WorkerFailure& failure);
  // For a node that says, or has said, Ready.
  void EnterReady(MonotonicTime now, Node& node);
  // Returns whether `cause` is now the cause of the epoch's end.
  bool Break(MonotonicTime now, Cause cause, std::string text);
  void Blame(MonotonicTime now, const NodeKey& key, const std::string& what);
  // Another stream of an excluded node may be ready already.
  void CoolDown(MonotonicTime now, const NodeKey& key);
  // Blames the node for its departure where it is at fault; `broke`: the departure ended the epoch.
  void JudgeDeparture(MonotonicTime now, const Node& node, Departure departure, bool broke,
                      const std::string& why);

  JobFacts facts_;
  bool ends_soon_ = false;   // the daemon
  Incarnation ending_host_;  // the process that it is part of
  std::string last_departure_;
  NodeKey last_departed_;
  std::map<MemberId, Node> nodes_;
  std::map<int, MemberId> by_node_rank_;  // the holder, not the one that contests
  std::map<std::tuple<std::string, int, Incarnation>, MemberId> by_process_;
  int ready_count_ = 0;
  int joining_count_ = 0;
  int old_workers_count_ = 0;
  int running_count_ = 0;
  int member_count_ = 0;
  int away_count_ = 0;
  Admission admission_;
  std::set<MemberId> bench_;
  std::set<MemberId> cooling_;
  MonotonicTime began_at_;  // the current epoch
  MonotonicTime old_workers_until_;
  absl::Duration stop_limit_;
  MonotonicTime waiting_since_;
  MonotonicTime forming_since_;
  std::optional<MonotonicTime> minimum_since_;
  MonotonicTime lease_watch_ = MonotonicTime::InfiniteFuture();
  MonotonicTime last_word_;                    // of any node
  std::optional<MonotonicTime> silent_until_;  // the end of the patience, while all are silent
  absl::Duration longest_lease_;               // of the nodes so far
  MonotonicTime closed_at_;
};

NodeKey KeyOf(const Node& node);

// "host" or "host (node rank 3)".
std::string NodeName(const Node& node);

// "host is lost".
std::string DepartureText(const Node& node, JobState::Departure departure);

}  // namespace convene::rendezvous

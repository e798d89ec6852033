// PURE. One job of the daemon: events in; messages to the agents, ends of streams and lines for the
// log out.
#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "rendezvous/quorum/chronicle.h"
#include "rendezvous/quorum/decide.h"
#include "rendezvous/quorum/job_record.h"
#include "rendezvous/quorum/job_state.h"
#include "rendezvous/quorum/job_view.h"
#include "rendezvous/quorum/messages.h"
#include "rendezvous/quorum/straggler_judge.h"
#include "tools/base/clock.h"

namespace convene::rendezvous {

// The consequences of one event, in order.
struct Outbox {
  struct Item {
    MemberId to;
    std::variant<DaemonEvent, absl::Status>
        what;  // a status ends the stream: nothing for `to` follows
    // The item may leave when so many changes of jobs are on the disk (job_table.h). From one item
    // of a stream to the next this number never falls.
    int64_t after_change = 0;
  };

  struct LogLine {
    std::string text;
    bool is_detail = false;  // for debugging only
    bool is_untold = false;  // no agent tells the same
  };

  void Say(MemberId to, DaemonEvent event);
  void End(MemberId to, absl::Status status);

  std::vector<Item> items;
  std::vector<LogLine> log;
};

// After each event the job decides until nothing is left to do. Not thread-safe.
//
// Two agents, one explicit node rank. The second one's hello is not answered until it is clear
// whether the first one is alive, which takes at most its lease: a word from the first refuses the
// second (AlreadyExists naming both hosts); the end of the first one's stream or lease lets the
// second one in. A second stream of the same process (host, node rank and incarnation) replaces the
// first, which ends with Aborted: the process itself knows best which of its streams is dead. The
// second stream is the one with the later Hello; on a bad line the Hello of a try that was given up
// arrives after the Hello that counts.
//
// A process that holds its place (messages.h) takes it again on another stream: after a restart of
// the daemon, and also when the daemon has not noticed yet that the old stream is dead. The daemon
// then sends the Assignment again, if the process has not heard of the epoch, and the Stop that it
// missed. A process whose stream is known to be over has lost its place: the other nodes have been
// told. A process whose workers have all succeeded has not (JobState::CutOff): nobody was told.
class Job {
 public:
  // `hello` is the job's first one and valid; its node still has to Join.
  Job(MonotonicTime now, const Hello& hello, Epoch floor);

  // Goes on as recorded: every member is away, with the identities from `first_id` on. Tick decides
  // next.
  Job(MonotonicTime now, const JobRecord& record, MemberId first_id);
  JobRecord Record(MonotonicTime now) const;

  // Some agent spoke, or its stream ended (JobState::Hear). Call it before the function that says
  // what follows, but for Join, which hears by itself.
  void Hear(MonotonicTime now, Outbox* outbox);
  // InvalidArgument when the hello contradicts the job; AlreadyExists when a third agent claims a
  // contested rank; Unavailable when its process has sent a later Hello; ResourceExhausted when the
  // job has kMostNodesPerJob nodes. After an error `id` is no node. REQUIRES: `hello` is valid; the
  // job is not closed.
  absl::Status Join(MonotonicTime now, MemberId id, Incarnation incarnation, const Hello& hello,
                    Outbox* outbox);
  // These functions ignore an `id` that is no node (any more).
  void Receive(MonotonicTime now, MemberId id, Epoch epoch, const AgentEvent& event,
               Outbox* outbox);
  void Disconnect(MonotonicTime now, MemberId id, Outbox* outbox);
  void Tick(MonotonicTime now, Outbox* outbox);

  // Sends Close and the end of the stream to a node that joins too late. REQUIRES: closed().
  void SendAway(MemberId id, Outbox* outbox) const;

  // JobState::RenewAway; Tick decides next.
  void RenewAway(MonotonicTime now);

  // JobState::EndSoon.
  void EndSoon(Incarnation host) { state_.EndSoon(host); }

  // Sets whether later Welcomes tell agents that a restart of this daemon stops no worker.
  void set_survives_restart(bool survives_restart) { survives_restart_ = survives_restart; }
  // Sets the daemon's term in later Welcomes.
  void set_term(int64_t term) { term_ = term; }

  // The time when Tick is next needed.
  MonotonicTime wake_at() const;
  const std::string& id() const { return id_; }
  bool closed() const { return state_.phase() == Phase::kClosed; }
  const JobState& state() const { return state_; }
  const JobPolicy& policy() const { return policy_; }
  // `with_news`: with events and incidents, which are many.
  JobView View(MonotonicTime now, bool with_news = true) const;
  Chronicle& chronicle() { return chronicle_; }

 private:
  // News for the log and the list of events; a decision tells its epoch.
  struct News {
    std::string kind;
    std::string text;
    bool is_detail = false;                       // of the log
    std::optional<Epoch> decided = std::nullopt;  // of a decision: its epoch
    bool is_untold = false;                       // as LogLine's
  };
  void Tell(MonotonicTime now, const News& news, Outbox* outbox);
  // Tells the consequences of an event of `node`. `before`, `places`: as they were before the
  // event; `failure`: the event's, or null; `is_unfit`: as the node said when it left.
  struct Before {
    std::string cause;
    bool was_excluded = false;
  };
  Before Look(MonotonicTime now, const Node& node) const;
  void NoteChanges(MonotonicTime now, const Node& node, const Before& before,
                   std::vector<std::string> places, const WorkerFailure* failure, bool is_unfit,
                   Outbox* outbox);
  void JudgeSteps(MonotonicTime now, const Node& node, const Heartbeat& heartbeat, Outbox* outbox);
  // Where the ranks stand, for the incident that an event may be; none where the epoch is broken
  // already, because each node tells of its end then.
  std::vector<std::string> Places() const;
  std::string WhyStraggler(int64_t group_rank) const;
  std::string StragglerText(const Straggler& straggler) const;
  std::string StragglerName(const Straggler& straggler) const;
  // Null: no member of the epoch has this place.
  const Node* MemberAt(int64_t group_rank) const;
  void Run(MonotonicTime now, Outbox* outbox);
  void Note(MonotonicTime now, const Decision& decision, Outbox* outbox);
  void Form(MonotonicTime now, const Decision& decision, Outbox* outbox);
  void Close(MonotonicTime now, Outbox* outbox);
  void Remove(MonotonicTime now, MemberId id, JobState::Departure departure, const std::string& why,
              Outbox* outbox);
  // Removes the members that were cut off.
  void RemoveCutOff(MonotonicTime now, Outbox* outbox);
  // Removes a node, and ends its stream with Unavailable.
  void GiveUp(MonotonicTime now, MemberId id, JobState::Departure departure, const std::string& why,
              Outbox* outbox);
  bool HoldsItsPlace(const Node& node, const Hello& hello) const;
  void Resume(MonotonicTime now, const Node& node, MemberId id, const Hello& hello, Outbox* outbox);
  void RefuseRival(MonotonicTime now, const Node& node, Outbox* outbox);
  Assignment AssignmentOf(const Node& node) const;
  Welcome WelcomeTo(const Node& node) const;
  void SendAway(MemberId id, rendezvous::Close close, Outbox* outbox) const;
  // The same for all nodes. Its time grows with the number of incidents.
  rendezvous::Close CloseOfAll() const;
  void Send(MemberId to, decltype(DaemonEvent::body) body, Outbox* outbox) const;

  std::string id_;
  Hello founder_;
  JobPolicy policy_;
  JobState state_;
  Decision decision_;      // the last one
  Assignment assignment_;  // of the current epoch, without a node's own part
  std::string stop_why_;   // of the last Stop
  bool survives_restart_ = false;
  int64_t term_ = 0;
  Chronicle chronicle_;
  StragglerJudge judge_;
};

}  // namespace convene::rendezvous

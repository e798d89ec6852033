// PURE. One job of the daemon: events in; messages to the agents, ends of streams and lines for the
// log out.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "rendezvous/quorum/decide.h"
#include "rendezvous/quorum/job_state.h"
#include "rendezvous/quorum/job_view.h"
#include "rendezvous/quorum/messages.h"
#include "tools/base/clock.h"

namespace convene::rendezvous {

// What one event has caused, in order.
struct Outbox {
  struct Item {
    MemberId to;
    std::variant<DaemonEvent, absl::Status>
        what;  // a status ends the stream: nothing for `to` follows
  };

  struct LogLine {
    std::string text;
    bool is_detail = false;  // of use only when something is looked for
  };

  void Say(MemberId to, DaemonEvent event);
  void End(MemberId to, absl::Status status);

  std::vector<Item> items;
  std::vector<LogLine> log;
};

// After each event it decides until nothing is left to do. Not thread-safe.
//
// Two agents, one explicit node rank. The second one's hello is not answered until it is clear
// whether the first one is alive, which takes at most its lease: a word from the first refuses the
// second (InvalidArgument naming both hosts); the end of the first one's stream or lease lets the
// second one in. A second stream of the same process (host, node rank and incarnation) always
// replaces the first, which ends with Aborted: nobody knows better than the process which of its
// streams is dead.
class Job {
 public:
  // `hello` is the first one, valid, and still has to Join.
  Job(MonotonicTime now, const Hello& hello, Epoch floor);

  // InvalidArgument when the hello contradicts the job or a third agent claims a contested rank;
  // ResourceExhausted when the job has kMostNodesPerJob nodes. `id` is then no node. REQUIRES:
  // `hello` is valid; the job is not closed.
  absl::Status Join(MonotonicTime now, MemberId id, Incarnation incarnation, const Hello& hello,
                    Outbox* outbox);
  // These ignore an `id` that is no node (any more).
  void Receive(MonotonicTime now, MemberId id, Epoch epoch, const AgentEvent& event,
               Outbox* outbox);
  void Disconnect(MonotonicTime now, MemberId id, Outbox* outbox);
  void Tick(MonotonicTime now, Outbox* outbox);

  // Close and the end of the stream, for one that joins too late. REQUIRES: closed().
  void SendAway(MemberId id, Outbox* outbox) const;

  // When Tick is next needed.
  MonotonicTime wake_at() const;
  bool closed() const { return state_.phase() == Phase::kClosed; }
  const JobState& state() const { return state_; }
  const JobPolicy& policy() const { return policy_; }
  JobView View() const;

 private:
  void Run(MonotonicTime now, Outbox* outbox);
  void Note(const Decision& decision, Outbox* outbox);
  void Form(MonotonicTime now, const Decision& decision, Outbox* outbox);
  void Close(MonotonicTime now, Outbox* outbox);
  void Remove(MonotonicTime now, MemberId id, JobState::Departure departure, const std::string& why,
              Outbox* outbox);
  void Welcome(MemberId id, Outbox* outbox) const;
  void Send(MemberId to, decltype(DaemonEvent::body) body, Outbox* outbox) const;

  std::string id_;
  JobPolicy policy_;
  JobState state_;
  Decision decision_;  // the last one
};

}  // namespace convene::rendezvous

// Job's functions for a restart of the daemon, and for a process that takes its place again.

#include "absl/strings/str_cat.h"
#include "rendezvous/quorum/job.h"

namespace convene::rendezvous {

Job::Job(MonotonicTime now, const JobRecord& record, MemberId first_id)
    : id_(record.founder.job_id),
      founder_(record.founder),
      policy_(PolicyOf(record.founder)),
      state_(now, record, first_id),
      assignment_(record.assignment),
      stop_why_(record.stop_why) {
  judge_.BeginEpoch(record.assignment.world_size);
  decision_.why = record.why;
  decision_.outcome = record.outcome;
  if (!closed()) decision_.wake_at = now;  // The record may be from before or after a decision.
}

void Job::RenewAway(MonotonicTime now) {
  state_.RenewAway(now);
  if (!closed()) decision_.wake_at = now;  // Deadlines were not looked at meanwhile.
}

JobRecord Job::Record(MonotonicTime now) const {
  JobRecord record;
  record.founder = founder_;
  record.assignment = assignment_;
  record.stop_why = stop_why_;
  record.why = decision_.why;
  state_.Record(now, &record);
  return record;
}

// True when the agent runs the current epoch's workers, or when it has not heard of the epoch and
// still has the store that the epoch was decided with.
bool Job::HoldsItsPlace(const Node& node, const Hello& hello) const {
  if (!hello.holds_place || node.state != NodeState::kRunning) return false;
  return hello.running_epoch == state_.epoch() || hello.last_epoch < state_.epoch();
}

void Job::Resume(MonotonicTime now, const Node& node, MemberId id, const Hello& hello,
                 Outbox* outbox) {
  Tell(now,
       {"node back", absl::StrCat(NodeName(node), " is back in epoch ", state_.epoch().value())},
       outbox);
  if (!node.away) {
    outbox->End(node.id, absl::AbortedError(absl::StrCat(
                             "another stream of this agent, incarnation ", node.incarnation.value(),
                             ", went on in the place of this one of ", node.incarnation.value())));
  }
  state_.Resume(now, node.id, id, hello);
  const Node& resumed = *state_.Find(id);
  RefuseRival(now, resumed, outbox);
  const bool knows_epoch = hello.running_epoch == state_.epoch();
  rendezvous::Welcome welcome = WelcomeTo(resumed);
  welcome.resumed = true;
  // An agent that has seen an epoch's number counts as having heard its Assignment. Should this
  // stream break between the two messages, the daemon must still know that this agent has not heard
  // it.
  outbox->Say(id, DaemonEvent{knows_epoch ? state_.epoch() : hello.last_epoch, welcome});
  if (!knows_epoch) Send(id, AssignmentOf(resumed), outbox);
  if (state_.phase() == Phase::kStopping) Send(id, Stop{state_.stop_kind(), stop_why_}, outbox);
  Run(now, outbox);
}

}  // namespace convene::rendezvous

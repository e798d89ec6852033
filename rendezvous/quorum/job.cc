#include "rendezvous/quorum/job.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "rendezvous/quorum/describe.h"
#include "tools/base/check.h"
#include "tools/base/status_macros.h"

namespace convene::rendezvous {
namespace {

// Heartbeats in a lease: two may be lost or late.
constexpr int kHeartbeatsPerLease = 3;

// The claimant may be a stranger: the text must not tell the holder's incarnation, by which a
// stream takes its place.
absl::Status RefusedRank(const Node& holder, const Node& claimant) {
  return absl::AlreadyExistsError(
      absl::StrCat("node rank ", holder.node_rank, " is taken: an agent of ", holder.host,
                   " holds it and is alive, another one of ", claimant.host,
                   " asks for it too. Give each node its own --node-rank"));
}

std::string KindText(const Decision& decision) {
  constexpr const char* kTexts[] = {"waiting",   "formed",     "stopping", "dropping",
                                    "admitting", "dismissing", "closed"};
  static_assert(std::size(kTexts) == static_cast<size_t>(Decision::Kind::kClose) + 1);
  const bool saves =
      decision.kind == Decision::Kind::kStop && decision.stop_kind == StopKind::kCheckpoint;
  return absl::StrCat(kTexts[static_cast<size_t>(decision.kind)],
                      saves ? " after a checkpoint" : "");
}

const char* EventKind(Decision::Kind kind) {
  constexpr const char* kKinds[] = {"waiting",  "epoch formed", "stop",    "node dropped",
                                    "admitted", "dismissed",    "job over"};
  static_assert(std::size(kKinds) == static_cast<size_t>(Decision::Kind::kClose) + 1);
  return kKinds[static_cast<size_t>(kind)];
}

// From where the epoch's workers may come to its store; none: from anywhere, because a node does
// not know its addresses, or a daemon before this one has heard them.
std::vector<std::string> StoreClients(const JobState& state) {
  std::set<std::string> addresses;
  for (const auto& [id, node] : state.nodes()) {
    if (!node.is_member()) continue;
    if (node.store.addresses.empty()) return {};
    addresses.insert(node.store.addresses.begin(), node.store.addresses.end());
    addresses.insert(node.store.store_host);
    if (addresses.size() > kMostStoreClients) return {};
  }
  return {addresses.begin(), addresses.end()};
}

}  // namespace

void Outbox::Say(MemberId to, DaemonEvent event) { items.push_back({to, std::move(event)}); }

void Outbox::End(MemberId to, absl::Status status) { items.push_back({to, std::move(status)}); }

Job::Job(MonotonicTime now, const Hello& hello, Epoch floor)
    : id_(hello.job_id), founder_(hello), policy_(PolicyOf(hello)), state_(now, floor) {}

void Job::Send(MemberId to, decltype(DaemonEvent::body) body, Outbox* outbox) const {
  outbox->Say(to, DaemonEvent{state_.epoch(), std::move(body)});
}

Welcome Job::WelcomeTo(const Node& node) const {
  return {.lease = node.lease,
          .heartbeat_interval = node.lease / kHeartbeatsPerLease,
          .survives_restart = survives_restart_,
          .awaits_old_workers = true,
          .term = term_};
}

absl::Status Job::Join(MonotonicTime now, MemberId id, Incarnation incarnation, const Hello& hello,
                       Outbox* outbox) {
  // Of another run by that name: no word of this one's nodes.
  CONVENE_RETURN_IF_ERROR(CheckAgreement(policy_, hello));
  Hear(now, outbox);
  if (const Node* same = state_.FindProcess(hello.host, hello.node_rank, incarnation)) {
    if (hello.said_at < same->hello_said_at) {
      return absl::UnavailableError(absl::StrCat("incarnation ", incarnation.value(),
                                                 " has opened another stream since this Hello"));
    }
    if (HoldsItsPlace(*same, hello)) {
      Resume(now, *same, id, hello, outbox);
      return absl::OkStatus();
    }
    const MemberId old = same->id;
    if (same->away) {
      Remove(now, old, JobState::Departure::kOutdated,
             same->is_cut_off ? "its agent did not keep its place"
                              : "what this daemon remembers from before its restart is old",
             outbox);
    } else {
      Remove(now, old, JobState::Departure::kLost, "its agent opened another stream", outbox);
      outbox->End(old, absl::AbortedError(absl::StrCat(
                           "another stream of this agent, incarnation ", incarnation.value(),
                           ", took the place of this one of ", incarnation.value())));
    }
  }
  if (state_.nodes().size() >= kMostNodesPerJob) {
    return absl::ResourceExhaustedError(absl::StrCat("job ", id_, " has ", kMostNodesPerJob,
                                                     " nodes, spares included: no more fit"));
  }
  MemberId rival;
  if (hello.node_rank >= 0) {
    if (const Node* holder = state_.FindNodeRank(hello.node_rank)) {
      if (holder->rival != MemberId()) {
        return absl::AlreadyExistsError(
            absl::StrCat("node rank ", hello.node_rank, " is claimed by ", holder->host, " and ",
                         state_.Find(holder->rival)->host, " already, ", hello.host,
                         " asks for it too. Give each node its own --node-rank"));
      }
      rival = holder->id;
    }
  }
  state_.Join(now, id, incarnation, hello, rival, policy_.nodes_min);
  if (rival == MemberId()) Send(id, WelcomeTo(*state_.Find(id)), outbox);
  Tell(now, {"node joined", absl::StrCat(NodeName(*state_.Find(id)), " joined"), true}, outbox);
  Run(now, outbox);
  return absl::OkStatus();
}

void Job::Receive(MonotonicTime now, MemberId id, Epoch epoch, const AgentEvent& event,
                  Outbox* outbox) {
  const Node* node = state_.Find(id);
  if (node == nullptr) return;
  const auto* const leave = std::get_if<Leave>(&event);
  if (leave != nullptr && !leave->has_workers) {
    SendAway(id, {Outcome::kLeft, leave->why, std::nullopt}, outbox);
    Remove(now, id, leave->is_unfit ? JobState::Departure::kUnfit : JobState::Departure::kLeft,
           leave->why, outbox);
    Run(now, outbox);
    return;
  }
  RefuseRival(now, *node, outbox);
  if (const auto* heartbeat = std::get_if<Heartbeat>(&event)) {
    if (node->state == NodeState::kRunning && epoch == state_.epoch()) {
      JudgeSteps(now, *node, *heartbeat, outbox);
    }
  }
  const bool is_news = !std::holds_alternative<Heartbeat>(event);
  const Before before = is_news ? Look(now, *node) : Before();
  const bool may_break = std::holds_alternative<WorkerFailure>(event) && epoch == state_.epoch();
  std::vector<std::string> places = may_break ? Places() : std::vector<std::string>();
  const JobState::Effect effect = state_.Apply(now, id, epoch, event, policy_.nodes_min);
  if (is_news && epoch == state_.epoch()) {
    NoteChanges(now, *node, before, std::move(places), std::get_if<WorkerFailure>(&event),
                leave != nullptr && leave->is_unfit, outbox);
  }
  if (effect.tell_to_stop) {
    Send(id,
         Stop{StopKind::kAbort, absl::StrCat("epoch ", epoch.value(),
                                             " went on without this node (the job is in epoch ",
                                             state_.epoch().value(), "); say Ready to join again")},
         outbox);
  }
  if (effect.changed) Run(now, outbox);
}

// Any message from a node refuses the one that contests its rank.
void Job::RefuseRival(MonotonicTime now, const Node& node, Outbox* outbox) {
  if (node.state == NodeState::kContesting || node.rival == MemberId()) return;
  const Node claimant = *state_.Find(node.rival);
  outbox->End(claimant.id, RefusedRank(node, claimant));
  state_.Remove(now, claimant.id, JobState::Departure::kLost, "", policy_.nodes_min);
}

void Job::Disconnect(MonotonicTime now, MemberId id, Outbox* outbox) {
  if (state_.Find(id) == nullptr) return;
  if (state_.KeepsPlace(id)) {
    state_.CutOff(id);
    Tell(now,
         {"node away", absl::StrCat(NodeName(*state_.Find(id)),
                                    " had succeeded, and its connection closed: its place is kept "
                                    "for its lease")},
         outbox);
    return;
  }
  Remove(now, id, JobState::Departure::kLost, "its connection closed", outbox);
  Run(now, outbox);
}

void Job::Tick(MonotonicTime now, Outbox* outbox) {
  if (closed()) return;
  if (state_.WaitsForWord(now, policy_.join_timeout)) {
    decision_.wake_at = state_.lease_watch();
    return;
  }
  const bool all_are_silent = state_.AllSilent(now);
  const std::vector<MemberId> expired = state_.Expired(now);
  // A rank is claimed, so leases are judged; every other wait is left alone, as in any silence.
  if (all_are_silent && expired.empty()) {
    decision_.wake_at = state_.lease_watch();
    return;
  }
  for (const MemberId id : expired) {
    const std::string why = all_are_silent
                                ? absl::StrCat("silent, as every node of the job")
                                : absl::StrCat("silent for its lease of ",
                                               absl::FormatDuration(state_.Find(id)->lease));
    GiveUp(now, id, all_are_silent ? JobState::Departure::kAllSilent : JobState::Departure::kLost,
           why, outbox);
  }
  Run(now, outbox);
}

void Job::Hear(MonotonicTime now, Outbox* outbox) {
  const absl::Duration silence = state_.Hear(now);
  if (silence == absl::ZeroDuration()) return;
  decision_.wake_at = now;  // Deadlines were not looked at meanwhile.
  Tell(now,
       {"silence",
        absl::StrCat("no node was heard for ",
                     absl::FormatDuration(absl::Trunc(silence, absl::Milliseconds(1))),
                     " (this daemon, or the whole job, stood still): no lease counts that time")},
       outbox);
}

// An agent that was paused reads this text when it wakes up.
void Job::GiveUp(MonotonicTime now, MemberId id, JobState::Departure departure,
                 const std::string& why, Outbox* outbox) {
  std::string text = absl::StrCat("given up by the daemon: ", why);
  if (state_.epoch() != Epoch()) {
    absl::StrAppend(&text, "; epoch ", state_.epoch().value(), " is over for incarnation ",
                    state_.Find(id)->incarnation.value());
  }
  const bool is_away = state_.Find(id)->away;
  Remove(now, id, departure, why, outbox);
  if (!is_away) outbox->End(id, absl::UnavailableError(text));
}

MonotonicTime Job::wake_at() const { return std::min(decision_.wake_at, state_.lease_watch()); }

// Removes a node; a node that contested its rank then joins.
void Job::Remove(MonotonicTime now, MemberId id, JobState::Departure departure,
                 const std::string& why, Outbox* outbox) {
  const Node node = *state_.Find(id);
  const Before before = Look(now, node);
  const bool runs = node.state == NodeState::kRunning;
  const std::vector<std::string> places = runs ? Places() : std::vector<std::string>();
  state_.Remove(now, id, departure, why, policy_.nodes_min);
  const bool left =
      departure == JobState::Departure::kLeft || departure == JobState::Departure::kUnfit;
  Tell(now,
       {left ? "node left" : "node lost",
        absl::StrCat(DepartureText(node, departure), why.empty() ? "" : ": ", why)},
       outbox);
  NoteChanges(now, node, before, places, nullptr, departure == JobState::Departure::kUnfit, outbox);
  if (node.state == NodeState::kContesting || node.rival == MemberId()) return;
  Send(node.rival, WelcomeTo(*state_.Find(node.rival)), outbox);
}

void Job::Run(MonotonicTime now, Outbox* outbox) {
  // A close ends the loop; every other decision changes the state that it was for. More than a few
  // steps are a bug in Decide.
  for (int step = 0; step < 8; ++step) {
    Decision decision = Decide(now, state_, policy_);
    Note(now, decision, outbox);
    decision_ = std::move(decision);
    switch (decision_.kind) {
      case Decision::Kind::kWait:
        return;
      case Decision::Kind::kForm:
        Form(now, decision_, outbox);
        break;
      case Decision::Kind::kStop:
        RemoveCutOff(now, outbox);
        for (const auto& [id, node] : state_.nodes()) {
          if (node.state != NodeState::kRunning) continue;
          Send(id, Stop{decision_.stop_kind, decision_.why}, outbox);
        }
        stop_why_ = decision_.why;
        state_.BeginStop(now, decision_.stop_kind);
        break;
      case Decision::Kind::kDrop:
        for (const MemberId id : decision_.members) {
          GiveUp(now, id, JobState::Departure::kDropped, decision_.why, outbox);
        }
        break;
      case Decision::Kind::kAdmit:
        state_.Admit(now, decision_.members, policy_.nodes_min);
        break;
      case Decision::Kind::kDismiss:
        for (const MemberId id : decision_.members) {
          SendAway(id, {Outcome::kLeft, decision_.why, std::nullopt}, outbox);
          Remove(now, id, JobState::Departure::kLeft, decision_.why, outbox);
        }
        break;
      case Decision::Kind::kClose:
        Close(now, outbox);
        return;
    }
  }
  CONVENE_CHECK(false);
}

// Its epoch is over, so its place is, too: the others do not wait for it, it may be dead.
void Job::RemoveCutOff(MonotonicTime now, Outbox* outbox) {
  std::vector<MemberId> cut_off;
  for (const auto& [id, node] : state_.nodes()) {
    if (node.is_cut_off) cut_off.push_back(id);
  }
  for (const MemberId id : cut_off) {
    Remove(now, id, JobState::Departure::kLost, "its connection closed", outbox);
  }
}

void Job::Note(MonotonicTime now, const Decision& decision, Outbox* outbox) {
  const bool is_wait = decision.kind == Decision::Kind::kWait;
  if (is_wait && decision.waiting_for == decision_.waiting_for) return;
  const Epoch epoch =
      decision.kind == Decision::Kind::kForm ? state_.highest_epoch().Next() : state_.epoch();
  const bool is_backoff = is_wait && decision.waiting_for == Decision::WaitingFor::kBackoff;
  const std::string text =
      absl::StrCat("epoch ", epoch.value(), " ", KindText(decision), ": ", decision.why);
  Tell(now, {EventKind(decision.kind), text, is_wait && !is_backoff, epoch, is_backoff}, outbox);
  const bool is_outcome =
      decision.kind == Decision::Kind::kForm || decision.kind == Decision::Kind::kClose;
  if (is_outcome) chronicle_.AddOutcome(text);
}

void Job::Form(MonotonicTime now, const Decision& decision, Outbox* outbox) {
  state_.BeginEpoch(now, decision.members, decision.seats);
  const Node& first = *state_.Find(decision.members.front());
  assignment_.group_world_size = static_cast<int>(decision.members.size());
  assignment_.world_size = 0;
  for (const MemberId id : decision.members) {
    assignment_.world_size += state_.Find(id)->local_world_size;
  }
  judge_.BeginEpoch(assignment_.world_size);
  assignment_.store_host = first.store.store_host;
  assignment_.store_port = first.store.store_port;
  assignment_.restart_count = state_.failure_count();
  assignment_.max_restarts = policy_.max_restarts;
  assignment_.why = decision.why;
  assignment_.attempt = state_.attempt();
  for (const MemberId id : decision.members) Send(id, AssignmentOf(*state_.Find(id)), outbox);
}

Assignment Job::AssignmentOf(const Node& node) const {
  Assignment assignment = assignment_;
  assignment.group_rank = node.group_rank;
  assignment.first_global_rank = node.first_global_rank;
  assignment.first_role_rank = node.first_role_rank;
  assignment.role_world_size = node.role_world_size;
  if (node.group_rank == 0) assignment.store_clients = StoreClients(state_);
  return assignment;
}

void Job::Close(MonotonicTime now, Outbox* outbox) {
  std::vector<MemberId> present;
  for (const auto& [id, node] : state_.nodes()) {
    if (!node.away) present.push_back(id);
  }
  state_.Close(now, decision_.outcome);
  judge_.BeginEpoch(0);
  const rendezvous::Close close = CloseOfAll();
  for (const MemberId id : present) SendAway(id, close, outbox);
}

rendezvous::Close Job::CloseOfAll() const {
  const bool is_failed = state_.outcome() == Outcome::kFailed;
  // The last failure may be a consequence of the first: "the folder exists".
  const std::string others = is_failed ? chronicle_.OtherFailures(state_.epoch()) : "";
  return {state_.outcome(), absl::StrCat(decision_.why, others),
          is_failed ? state_.failure() : std::nullopt};
}

void Job::SendAway(MemberId id, Outbox* outbox) const { SendAway(id, CloseOfAll(), outbox); }

void Job::SendAway(MemberId id, rendezvous::Close close, Outbox* outbox) const {
  Send(id, std::move(close), outbox);
  outbox->End(id, absl::OkStatus());
}

}  // namespace convene::rendezvous

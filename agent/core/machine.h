// PURE. The whole behaviour of a node's agent, without a process, a socket or a clock.
//
//   kConnecting ──Welcome, StoreStarted──► kWaiting (Ready sent)
//     ▲   ▲                                   │ Assignment
//     │   │ WorkersGone                       ▼
//     │   └──────────── kStopping ◄─────── kRunning
//     │                   │  ▲   a worker     │ all workers ended with 0
//     │                   │  │   failed,      ▼
//     │ Stop              │  └── Stop ──── kSucceeded (WorkersSucceeded sent; what the workers
//     └───────────────────┼──── Stop ─────────┤         left may still run, until WorkersGone)
//                         │                   │
//    a result is known: a signal, the program cannot run, Close, the rendezvous is gone
//                           ▼                 ▼
//                       kLeaving ──Close, or 1 s after Leave──► kFinished
//
// The stream may break in any state (`linked` turns false). The agent dials again with back-off,
// with `last_epoch` in its Hello, until connect_timeout (never linked yet) or RedialTimeout (linked
// before) has passed: then 69. Workers run on meanwhile, with one limit (the fence, below). A
// daemon that refuses this node's token or certificate (PermissionDenied) ends it with 64: before
// the first Welcome at once, afterwards only when that time has passed, because an expired
// certificate may be renewed meanwhile.
//
// The next Welcome decides about the workers:
//
//   resumed               | the daemon was started again and remembers this node's place, or it has
//                         | kept that of a node whose workers had succeeded
//     running, stopping   |   -> go on; a failure the old daemon may not have heard is told again
//     succeeded           |   -> WorkersSucceeded again
//     waiting             |   -> Ready again, with the same store: a decided epoch may name it
//     workers gone        |   -> the failure again, if there was one; a fresh store, Ready
//   not resumed:
//     the daemon has an   | the daemon removed this node when the old stream ended: the peers have
//     epoch               | been told to stop, no step can finish (where this node's workers had
//                         | succeeded: the epoch is over, or this node was away for its lease)
//                         |   -> stop the workers (abort), then Ready
//     it has none         | the daemon lost its memory: the peers are as healthy as we are
//                         |   -> stop the workers (checkpoint), then Ready
//
// Two epochs must not run at once. Hello.has_workers makes the daemon hold the next epoch back
// until this node's Ready, if the Hello is in time: the agent dials again the moment the stream
// breaks, while the peers stop their workers. A late Hello has a bound: where the daemon has an
// epoch, the workers are dead when the lease of the old stream ends, whatever grace they have.
// (decide.h says why the daemon does not hold every epoch back for a lease.)
//
// The place is held (Hello.holds_place) from a Welcome with survives_restart on, until a Welcome
// does not resume it. In kSucceeded the Hello says so under any daemon: the epoch goes on, and the
// peers may need this node's store. After a Welcome that resumes it comes the Assignment or Stop
// that was missed.
//
// A daemon without a journal that ends in order hands its jobs over (HandOver). The place is held
// then, too, but only as long as the lease of the broken stream: the daemon that goes on with the
// job counts this node's lease from its own start, which is later, so no epoch forms without this
// node before. An agent that was given the state of the job may host at once, and takes the state
// along; whichever of several such agents binds the port first is the one that hosts, and the
// others find it there. After the lease the state may be older than what the others have done
// since, and is thrown away. A process that ends by itself, or dies with the state in its hands,
// leaves it to the others.
//
// The fence. The daemon gives this node a lease: the others may go on without it as soon as the
// daemon has not heard it for so long. So this node's workers are dead by then, even if
// no word gets through: at most one epoch of a run is alive. A node goes by its own monotonic clock
// alone:
//
//   heard_at  the latest moment of which this node knows that the daemon heard it then or later:
//             when it sent the last Heartbeat that was answered (Heard), or the Hello that was
//             answered (Welcome). A refused connection counts, too, from the moment when the node
//             began to connect, if it holds its place under a daemon with a journal and was refused
//             each time since the stream broke (the daemon died with the stream; one that listens
//             later counts the whole lease from then)
//   heard_at + lease - lead   the workers are told to stop (abort), where lead is a second or an
//             eighth of the lease, whichever is shorter
//   heard_at + lease          they are killed, not later than the daemon gives the node up
//
// With a heartbeat each third of a lease, answers may so take half a lease before healthy workers
// are stopped. An Assignment that arrives behind the fence starts no worker. Where the daemon runs
// in this process there is no fence: the daemon sleeps with the node and cannot give it up.
// Elsewhere the fence stays after Close: the daemon counts on this node no more, and the next run
// under the same id may begin at once. A process that hosts the daemon and is told to end serves on
// while nodes of its run still stop their workers (agent/node_end.cc), so that their checkpoints
// have the whole grace.
//
// A pause. An agent that did not run (`scontrol suspend`, a stopped container) finds the fence
// behind it when it wakes up, before it hears of its epoch's fate. The daemon may have gone on
// without this node; or it slept as well, with the whole job, and then no lease has ended
// (rendezvous/quorum/job_state.h). Only the daemon knows. So where the stream still stands, the
// workers rest (SIGSTOP: they are as good as dead to the others), a heartbeat asks, and
//
//   it is answered       the workers go on, in the same epoch
//   the stream ends      the daemon gave this node up: the workers are killed
//   neither in a lease   the workers are killed
//
// The graces of a stop, and the time to find a lost rendezvous, end later by the time of a pause;
// `dead_by` does not move.
//
// While connections are refused the fence moves on with each try: a daemon with a journal that is
// merely down stops no worker. Refusals prove nothing after a daemon that was there since the
// stream broke: before it died it may have begun an epoch without this node. (The first try follows
// the break at once. The proof assumes that this end of a connection sees it break before the
// daemon has formed an epoch for it and died. After a pause that is not so: then refusals prove
// nothing until the daemon has heard this node again.) And they prove nothing without a journal:
// between two tries a daemon without a memory may come, begin an epoch with the others, and die. So
// workers outlive such a daemon by a lease, unless a new one answers in that time. The start of a
// job loses nothing by this. Nor does the loss of the node that serves the rendezvous: its own
// workers are dead, so the others can finish no step, and are gone when the new daemon comes. Where
// a daemon without --state-dir has a machine of its own and is away for longer than a lease, the
// job loses the work since its last checkpoint; the new daemon would begin another epoch in any
// case. (A new daemon could wait until every agent has tried again. But where only new agents reach
// it, nobody tells it of an older epoch, so each start of a job would have to wait.)
//
// The fence, and a Welcome that does not resume, set `dead_by`. No later stop of the same workers
// (a signal, a failure, a message of the daemon) moves it: `stop_deadline` is never after it.
//
// Several endpoints are daemons that take turns over one memory; one of them leads and listens. The
// agent asks one after the other, each once, and waits only when all have been asked (a round). A
// round begins behind the endpoint that lost the stream. A leader that has not answered a heartbeat
// within a quarter of the lease is left, and so is a daemon that takes the Hello and says no
// Welcome: the rest of the lease is for the search. So heartbeats come each eighth of the lease.
// An endpoint that refuses this node is passed over, for a stranger may have the address of a
// daemon that died. The node ends with 64 where one still refuses at the deadline; before its first
// Welcome that comes a takeover's time after the first refusal, and at once where all refuse.
// Welcome.term never falls: a daemon with a smaller one led before and does not know that another
// one leads. Refused connections do not move the fence, because the leader may be at an endpoint
// that this agent does not know.
//
// A worker's end while it is being stopped comes from the stop, with one exception. In a stop for a
// checkpoint all workers are healthy: a worker that crashes then has failed, and so has a worker in
// session that ends by anything but 0, 75 or the agent's signal. The failure is reported, and the
// stop becomes an abort: the checkpoint will not be complete.
//
// All workers of the node have ended with 0, and a process that they left still runs (an upload in
// the background): the success is told at once, so that nobody waits for that process and nothing
// that happens meanwhile undoes the success. A Stop, a Welcome that does not resume, the fence and
// a signal end the process, as they end workers; only the fence leaves the node in kSucceeded,
// because a daemon that remembers the place wants the success again. Close(kSucceeded) says that
// every node's workers have succeeded: then the exit code is 0, whatever signal came before or
// comes after. While others still work, nobody can know that; so a signal then ends the command by
// 128 + n.
//
// An agent that ends while workers run says Leave twice: when the first of them has ended, so that
// the peers are not blamed for breaking next, and when the last one is gone, which lets the next
// epoch begin.
//
// With a health check, kConnecting lasts until it has passed: Ready is said after it, in each
// epoch. A node that waits for a seat (a spare may, for days) is checked again and again; an
// Assignment does not wait for that. A node that fails the check leaves for good.
//
// An Assignment that comes while workers run stops them when its epoch is another, and else
// changes nothing.
//
// A node that has waited for kQuietWait, for a rendezvous that it never reached, for an epoch, or
// without workers for a rendezvous that it lost, says so once: a silent command looks like one that
// hangs.
#pragma once

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "agent/core/exit_classifier.h"
#include "agent/options.h"
#include "rendezvous/quorum/messages.h"
#include "tools/base/backoff.h"
#include "tools/base/clock.h"
#include "tools/base/stop_request.h"

namespace convene::agent {

enum class Phase { kConnecting, kWaiting, kRunning, kStopping, kSucceeded, kLeaving, kFinished };

struct Result {
  int exit_code = 0;        // by tools/base/exit_code.h
  std::string explanation;  // one paragraph; empty on success
  // The job's first failed worker, on whichever node; nullopt: none that counts.
  std::optional<rendezvous::WorkerFailure> failure = std::nullopt;
  // The output of this node's workers that could not be written, and where; "": all was written.
  std::string lost_output = {};
};

// Constant for the run.
struct Rules {
  rendezvous::Hello hello;
  std::string endpoint;  // for texts; its port may be 0: see FromDaemon
  // Several: daemons that take turns over one memory. Of one, `endpoint` may stand alone.
  std::vector<std::string> endpoints = {};
  std::string store_host;  // what Ready says, unless StoreStarted knows better
  absl::Duration connect_timeout = absl::Seconds(60);
  bool awaits_node_rank = false;  // AgentOptions::awaits_node_rank
  StopGraces stop_graces;
  bool has_health_check = false;        // before each Ready, or spares to wait for
  absl::Duration health_check_timeout;  // zero without one
  absl::Duration health_check_interval = absl::Minutes(5);  // while it waits for a seat
  // The grace of an abort when every live worker opened the session: the session told them that
  // their work is void.
  absl::Duration session_abort_grace = absl::Seconds(1);
  // The time after KILL: a process that is not gone then hangs in the kernel.
  absl::Duration kill_patience = absl::Seconds(30);
  absl::Duration leave_patience = absl::Seconds(1);
  // The time from the workers' end to Ready, beside a health check: their last output is read, a
  // store is started.
  absl::Duration ready_patience = absl::Seconds(10);
  bool propagate_exit_code = false;  // of the job's first failure
};

// The longest time from a Stop to this node's Ready: Hello::stop_limit. A stop for a checkpoint may
// become an abort, or a signal may come, as its grace ends: then the other grace follows.
inline absl::Duration StopLimit(const Rules& rules) {
  const StopGraces& graces = rules.stop_graces;
  return graces.checkpoint + std::max(graces.signal, graces.abort) + rules.kill_patience +
         rules.health_check_timeout + rules.ready_patience;
}

// The time for which an agent looks for a lost rendezvous: at least as long as a daemon that was
// started again keeps the agent's place.
inline absl::Duration RedialTimeout(const Rules& rules) {
  return std::max(rules.hello.join_timeout, rules.hello.lease);
}

// ---- events ----

struct Begin {};
struct FromDaemon {
  rendezvous::DaemonEvent event;
  MonotonicTime hello_at;     // when the Hello of its stream was said
  bool is_from_here = false;  // this process hosts the daemon
  // For texts, where Rules::endpoint has no port that a person could use; "": it has one.
  std::string endpoint = {};
};
// The stream ended, or could not be opened.
struct StreamEnded {
  absl::Status status;
  // The start of a connection that the endpoint's machine refused: no daemon ran there then.
  std::optional<MonotonicTime> refused_at = std::nullopt;
};
struct StoreStarted {
  int port = 0;
  std::string host = {};  // that others reach it by; "": as in Rules
};
struct StoreFailed {
  absl::Status status;
};
struct HealthChecked {
  absl::Status status;  // not OK: this node is unfit, the message says how it ended
};
struct SessionOpened {
  int local_rank = 0;
};
// The worker said that its program goes on without a session. (A session that just closes tells
// nothing: a worker's own end closes it, too.)
struct SessionLeft {
  int local_rank = 0;
};
struct WorkerExited {
  int local_rank = 0;
  int64_t pid = 0;
  ExitStatus status;
  std::vector<std::string> last_log_lines;
  std::vector<std::string> error_lines;  // of its error file
  std::string error_file;                // where that is; "" = there is none
};
// A worker of that epoch makes no progress, which counts as a failure although it runs.
struct WorkerHung {
  Epoch epoch;
  int local_rank = 0;
  int64_t pid = 0;
  std::string why;
  std::vector<std::string> last_log_lines;  // where it stands
};
// Every worker is reaped and its output read to the end. No process that any of them started is
// left, but for processes that are left alone (LeftoverOptions) or that hang in the kernel.
struct WorkersGone {};
struct SpawnFailed {
  absl::Status status;  // NotFound, PermissionDenied, InvalidArgument: the program; else: this node
};
struct SignalReceived {
  ReceivedSignal signal;
};
// This process did not run for so long, until now (its loop woke up so much too late).
struct Paused {
  absl::Duration duration;
};
struct Timer {};

using Event = std::variant<Begin, FromDaemon, StreamEnded, StoreStarted, StoreFailed, HealthChecked,
                           SessionOpened, SessionLeft, WorkerExited, WorkerHung, WorkersGone,
                           SpawnFailed, SignalReceived, Paused, Timer>;

// ---- actions, done in order; each says why, for the log ----

struct OpenStream {
  rendezvous::Hello hello;
  size_t endpoint = 0;     // which of Rules::endpoints
  absl::Duration timeout;  // for this one try
  // This process may serve the rendezvous if no process does; not in place of a daemon with a
  // memory, which will be back.
  bool may_host = true;
  // A daemon that begins here before `handed_over_until` goes on with it.
  std::string handed_over = {};
  MonotonicTime handed_over_until = {};
  std::string why;
};
struct CloseStream {
  std::string why;
};
struct Send {
  Epoch epoch;
  rendezvous::AgentEvent event;
  std::string why;
};
struct StartWorkers {
  Epoch epoch;
  rendezvous::Assignment assignment;
  std::string why;
};
// Session line ("abort" or "checkpoint", with `why`) to the workers that opened a session, and
// `signal`. When all have ended: what they left behind is to end now (leftovers.h).
struct StopWorkers {
  rendezvous::StopKind kind = rendezvous::StopKind::kAbort;
  int signal = 0;
  bool spare_sessions = false;  // workers with a session get the line only
  bool session_line = true;     // false: the signal alone (it came from outside and is passed on)
  std::string why;
};
struct KillWorkers {
  std::string why;
};
// SIGSTOP to the workers until WakeWorkers, or until they are killed.
struct RestWorkers {
  std::string why;
};
struct WakeWorkers {
  std::string why;
};
// Answered by StoreStarted or StoreFailed.
struct RestartStore {
  std::string why;
};
// Answered by HealthChecked, unless it is cancelled. No other check runs then.
struct RunHealthCheck {
  Epoch last_epoch;  // the latest one known, 0 before the first
};
struct CancelHealthCheck {};
// To the person.
struct Say {
  std::string line;
};
struct Finish {
  Result result;
};

using Action =
    std::variant<OpenStream, CloseStream, Send, StartWorkers, StopWorkers, KillWorkers, RestWorkers,
                 WakeWorkers, RestartStore, RunHealthCheck, CancelHealthCheck, Say, Finish>;
using Actions = std::vector<Action>;

// ---- the machine ----

struct State {
  explicit State(Rules rules) : rules(std::move(rules)) {}

  Rules rules;
  Phase phase = Phase::kConnecting;
  std::string why;  // of the latest change of phase

  Epoch epoch;          // of the latest Assignment
  Epoch highest_epoch;  // ever seen
  rendezvous::Assignment assignment;
  std::set<int> alive;         // local ranks of the workers that have not ended
  bool has_workers = false;    // or what they left: from StartWorkers to WorkersGone
  bool has_succeeded = false;  // every worker of `epoch`, and no Ready has followed
  std::set<int> in_session;    // local ranks that opened the session, and did not leave
  // The epoch's first failure that this node reported: a later reason for the run's end does not
  // hide it.
  std::optional<rendezvous::WorkerFailure> failure;
  std::map<Epoch, std::string> stops;  // why the last epochs were stopped, for the last words

  // The stream.
  bool linked = false;   // Welcome came on the present stream
  bool dialing = false;  // a stream is open, or being opened
  bool ever_linked = false;
  std::string endpoint;     // FromDaemon's
  std::string loss;         // how the last stream ended on which Welcome came
  bool said_ready = false;  // on the present stream
  bool said_leaving = false;
  MonotonicTime link_deadline = MonotonicTime::InfiniteFuture();
  MonotonicTime dial_at = MonotonicTime::InfiniteFuture();
  MonotonicTime heartbeat_at = MonotonicTime::InfiniteFuture();
  absl::Duration heartbeat_interval = absl::Seconds(1);
  std::optional<Backoff> backoff;  // none: the first try after a good stream
  // The time when a broken stream was last dialled again without a wait.
  MonotonicTime dialled_at_once_at = MonotonicTime::FromEpoch(-absl::InfiniteDuration());
  // The break was seen at once, and every try since was refused.
  bool only_refused = false;
  std::vector<bool> refused;       // by endpoint: the last try there ended with PermissionDenied
  bool told_of_refusal = false;    // since the last Welcome
  bool told_of_rival = false;      // that another agent has this node's rank, and is awaited
  bool told_of_strangers = false;  // that the daemons at several endpoints may not share a memory

  // Of several endpoints.
  size_t at = 0;                    // the one that is dialled, or where the stream is open
  size_t missed = 0;                // so many of this round did not answer
  std::vector<std::string> misses;  // why each one did not, when it was last dialled
  int64_t term = 0;                 // the highest that a Welcome told
  // The daemon is left for another endpoint when it says nothing until then.
  MonotonicTime silent_at = MonotonicTime::InfiniteFuture();
  // When the person hears what this node waits for; each wait is told once.
  MonotonicTime tell_wait_at = MonotonicTime::InfiniteFuture();
  bool told_wait = false;  // for a place, in this phase

  // The fence, see above.
  bool has_fence = false;
  absl::Duration lease;  // of the last Welcome
  MonotonicTime heard_at;
  std::deque<MonotonicTime> unheard;  // when the heartbeats without an answer were sent
  MonotonicTime fence_at = MonotonicTime::InfiniteFuture();  // when the workers are told to stop
  MonotonicTime woke_at;                                     // from the last pause
  // The workers rest since then, until a word of the daemon that is newer; none: they do not.
  std::optional<MonotonicTime> resting_since;

  // The place in an epoch, under a daemon that keeps it over a restart.
  bool holds_place = false;
  // The daemon of the last stream handed its jobs over; none from the next Welcome on, and when the
  // lease of that stream is over.
  std::optional<rendezvous::HandOver> handed_over;
  Epoch place;                                             // the epoch of the place; 0: none yet
  std::optional<rendezvous::WorkerFailure> place_failure;  // of `place`, as reported
  // kConnecting.
  int store_port = 0;  // 0: the store of the coming epoch does not run yet
  std::string store_host;
  bool is_checking_health = false;
  // kWaiting.
  MonotonicTime check_health_at = MonotonicTime::InfiniteFuture();

  // kStopping and kLeaving.
  rendezvous::StopKind stop_kind = rendezvous::StopKind::kAbort;
  MonotonicTime stop_deadline = MonotonicTime::InfiniteFuture();  // not after dead_by
  MonotonicTime dead_by = MonotonicTime::InfiniteFuture();        // only ever earlier
  bool killed = false;
  StopRequest stop_request;       // of a person or a scheduler, by signals
  std::optional<Result> verdict;  // how to finish once the workers are gone; none: Ready again
  int ending_signal = 0;          // the verdict is of this one
};

// `random_fraction` in [0, 1) spreads the next dial. Not thread-safe.
Actions Step(State& state, const Event& event, MonotonicTime now, double random_fraction);

// The time when the next Timer is due.
MonotonicTime NextTimer(const State& state);

// For log lines: "running".
const char* PhaseName(Phase phase);

}  // namespace convene::agent

// PURE. What one node's agent does next: all of an agent's behaviour, without a process, a socket
// or a clock.
//
//   kConnecting ──Welcome, StoreStarted──► kWaiting (Ready sent)
//     ▲   ▲                                   │ Assignment
//     │   │ WorkersGone                       ▼
//     │   └──────────── kStopping ◄─────── kRunning
//     │                     │    a worker     │ all workers ended with 0
//     │ Stop                │    failed,      ▼
//     └─────────────────────┼─── Stop ──── kSucceeded (WorkersSucceeded sent)
//                           │                 │
//    a result is known: a signal, the program cannot run, Close, the rendezvous is gone
//                           ▼                 ▼
//                       kLeaving ──Close, or 1 s after Leave──► kFinished
//
// The stream may break in any state (`linked` turns false). The agent dials again with back-off,
// with `last_epoch` in its Hello, until connect_timeout (never linked yet) or join_timeout (linked
// before) has passed: then 69. Workers run on meanwhile. But for the daemon a node is its stream,
// and a node whose stream broke is lost: the others have been told to stop. So a reconnect never
// resumes an epoch, it leads to a new one; the epoch of the Welcome tells on which way:
//
//   this node's or higher | the daemon remembers: the peers have stopped, no step can finish
//                         |                       -> stop the workers (abort), then Ready
//   lower                 | the daemon lost its memory: the peers are as healthy as we are
//                         |                       -> stop the workers (checkpoint), then Ready
//
// A worker's end while it is being stopped is the stop's doing, with one exception: all are healthy
// in a stop for a checkpoint, so one that crashes there, or in session ends by anything but 0, 75
// or our own signal, has failed. It is reported, and the stop becomes an abort: what is being saved
// will not be complete.
//
// An Assignment that comes while workers run stops them when its epoch is another, and else
// changes nothing.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "agent/core/exit_classifier.h"
#include "rendezvous/quorum/messages.h"
#include "tools/base/backoff.h"
#include "tools/base/clock.h"

namespace convene::agent {

enum class Phase { kConnecting, kWaiting, kRunning, kStopping, kSucceeded, kLeaving, kFinished };

struct Result {
  int exit_code = 0;        // by tools/base/exit_code.h
  std::string explanation;  // one paragraph; empty on success
};

// Constant for the run.
struct Rules {
  rendezvous::Hello hello;
  std::string endpoint;    // for texts
  std::string store_host;  // what Ready says
  absl::Duration connect_timeout = absl::Seconds(60);
  absl::Duration stop_grace = absl::Seconds(30);
  // For an abort when every live worker opened the session: it was told in words that its work is
  // void.
  absl::Duration session_abort_grace = absl::Seconds(1);
  // After KILL: a process that is not gone then hangs in the kernel.
  absl::Duration kill_patience = absl::Seconds(30);
  absl::Duration leave_patience = absl::Seconds(1);
};

// ---- events ----

struct Begin {};
struct FromDaemon {
  rendezvous::DaemonEvent event;
};
// Also: it could not be opened.
struct StreamEnded {
  absl::Status status;
};
struct StoreStarted {
  int port = 0;
};
struct StoreFailed {
  absl::Status status;
};
struct SessionOpened {
  int local_rank = 0;
};
struct WorkerExited {
  int local_rank = 0;
  int64_t pid = 0;
  ExitStatus status;
  std::vector<std::string> last_log_lines;
};
// Every worker is reaped and its output read to the end.
struct WorkersGone {};
struct SpawnFailed {
  absl::Status status;  // NotFound, PermissionDenied, InvalidArgument: the program; else: this node
};
struct SignalReceived {
  int signal = 0;
};
struct Timer {};

using Event = std::variant<Begin, FromDaemon, StreamEnded, StoreStarted, StoreFailed, SessionOpened,
                           WorkerExited, WorkersGone, SpawnFailed, SignalReceived, Timer>;

// ---- actions, done in order; each says why, for the log ----

struct OpenStream {
  rendezvous::Hello hello;
  absl::Duration timeout;  // for this one try
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
// `signal`.
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
// Answered by StoreStarted or StoreFailed.
struct RestartStore {
  std::string why;
};
struct Finish {
  Result result;
};

using Action = std::variant<OpenStream, CloseStream, Send, StartWorkers, StopWorkers, KillWorkers,
                            RestartStore, Finish>;
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
  std::set<int> alive;       // local ranks of the workers that have not ended
  std::set<int> in_session;  // local ranks that opened the session

  // The stream.
  bool linked = false;   // Welcome came on the present stream
  bool dialing = false;  // a stream is open, or being opened
  bool ever_linked = false;
  bool said_ready = false;  // on the present stream
  bool said_leave = false;
  MonotonicTime link_deadline = MonotonicTime::InfiniteFuture();
  MonotonicTime dial_at = MonotonicTime::InfiniteFuture();
  MonotonicTime heartbeat_at = MonotonicTime::InfiniteFuture();
  absl::Duration heartbeat_interval = absl::Seconds(1);
  std::optional<Backoff> backoff;  // none: the first try after a good stream

  // kStopping and kLeaving.
  rendezvous::StopKind stop_kind = rendezvous::StopKind::kAbort;
  MonotonicTime stop_deadline = MonotonicTime::InfiniteFuture();
  bool killed = false;
  int signals = 0;                // that the person sent
  std::optional<Result> verdict;  // how to finish once the workers are gone; none: Ready again
};

// `random_fraction` in [0, 1) spreads the next dial. Not thread-safe: the state has one owner.
Actions Step(State& state, const Event& event, MonotonicTime now, double random_fraction);

// When the next Timer is due.
MonotonicTime NextTimer(const State& state);

// For log lines: "running".
const char* PhaseName(Phase phase);

}  // namespace convene::agent

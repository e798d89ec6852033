// PURE. The messages of agents and the daemon, as values: proto/rendezvous.proto without the wire.
// Its comments hold here too.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/time/time.h"
#include "rendezvous/quorum/log_lines.h"
#include "tools/base/clock.h"
#include "tools/base/strong_int.h"

namespace convene::rendezvous {

// The limits of a Hello; the daemon refuses one that exceeds them.
inline constexpr int kMostNodesPerJob = 65536;
inline constexpr int kMostWorkersPerNode = 4096;
// The workers of a node whose progress a heartbeat tells: the first ones, so that a message stays
// below gRPC's limit.
inline constexpr int kMostRanksTold = 256;
// A node with more of them tells none.
inline constexpr int kMostAddresses = 64;
// In an Assignment; where the nodes have more of them, it names none.
inline constexpr int kMostStoreClients = 32768;

struct Hello {
  std::string job_id;
  std::string host;
  int node_rank = -1;  // -1: not given
  int local_world_size = 1;
  std::string role = "default";  // of this node's workers
  int nodes_min = 1;
  int nodes_max = 1;
  int nodes_expected = 0;  // 0: not known
  int max_restarts = 0;
  absl::Duration join_timeout = absl::Minutes(10);
  absl::Duration last_call = absl::ZeroDuration();  // zero: none was asked for
  absl::Duration lease = absl::Seconds(5);
  Epoch last_epoch;
  Epoch running_epoch;       // the epoch in which this node holds its place; 0: none
  bool holds_place = false;  // its stream broke: it has kept its workers, or its last Ready's store
  std::string topology;
  int spares = 0;
  absl::Duration restart_window;  // zero: every failure counts for ever
  int max_stuck_restarts = 0;     // 0: never
  absl::Duration admission = absl::ZeroDuration();
  bool publishes_logs = false;  // CAPABILITY_LOGS
  bool may_host = false;        // CAPABILITY_HOSTS
  bool excludes_stragglers = false;
  std::string log_directory;
  MonotonicTime said_at;      // on the agent's clock: compares with its own other streams only
  bool has_workers = false;   // of an epoch that it was in on an earlier stream
  absl::Duration stop_limit;  // the longest time from a Stop to this node's Ready; zero: not told
};

struct Ready {
  std::string store_host;
  int store_port = 0;
  // From which this node's workers may come to the store, at most kMostAddresses; none: from any.
  std::vector<std::string> addresses;
};

// The progress of the node's slowest worker.
struct WorkerProgress {
  int64_t step = 0;             // last finished
  double steps_per_second = 0;  // lately; 0: not known yet
  std::string phase;            // "step", "checkpoint", ...
};

// The progress of one worker. Times are means of a step, over the steps since its last report. A
// number that the worker does not tell is 0.
struct RankProgress {
  int local_rank = 0;
  int64_t step = 0;             // last finished
  double steps_per_second = 0;  // lately; 0: not known yet
  std::string phase;
  double compute_ms = 0;     // its own work
  double wait_ms = 0;        // for other ranks
  double data_ms = 0;        // for its samples
  double checkpoint_ms = 0;  // for its saves
  double loss = 0;           // of the last step
  double tokens_per_second = 0;
  int64_t memory_bytes = 0;
  int64_t memory_peak_bytes = 0;
  int place = 0;  // ranks of the same place do the same work; 0: all do
  // "all_reduce #17 of dp waits for rank 3", of a worker that finished no step since its last
  // report; "": it waits for none, or does not tell.
  std::string awaits;
  int steps = 0;   // the means are of so many steps; 0: they are older ones
  double mfu = 0;  // model FLOPs utilization of the last step, as a share of the device's peak
};

struct Heartbeat {
  std::optional<WorkerProgress> progress;  // none: no worker tells its progress
  std::vector<RankProgress> ranks;         // by local rank, at most kMostRanksTold; at most once a
                                           // second, else empty
};

struct WorkerFailure {
  int global_rank = -1;
  int local_rank = -1;
  std::string host;
  int64_t pid = 0;
  int exit_code = 0;  // valid when signal is 0
  int signal = 0;
  std::string why;                          // "killed by SIGKILL", "exit code 3"
  std::vector<std::string> last_log_lines;  // at most 20, each at most 500 bytes
  // The first lines of the worker's record in $TORCHELASTIC_ERROR_FILE; at most 4, each as long as
  // those of last_log_lines.
  std::vector<std::string> error_lines;
  std::string error_file;    // on that host; bytes, not text
  bool costs_budget = true;  // false for exit code 75
  bool is_final = false;     // a restart would end the same way: bad usage, an unfit node
  // The kernel's lines about this process, and about the node's hardware; as those of error_lines.
  std::vector<std::string> kernel_lines;
};

struct WorkersSucceeded {};

struct Leave {
  std::string why;
  bool is_unfit = false;
  bool has_workers = false;  // they end now; a Leave without any follows
};

using AgentEvent = std::variant<Ready, Heartbeat, WorkerFailure, WorkersSucceeded, Leave>;

struct Assignment {
  int group_rank = 0;
  int group_world_size = 1;
  int first_global_rank = 0;
  int world_size = 1;
  // Among the workers with this node's role, in the order of their global ranks.
  int first_role_rank = 0;
  int role_world_size = 1;
  std::string store_host;
  int store_port = 0;
  int restart_count = 0;
  int max_restarts = 0;
  std::string why;
  int attempt = 0;
  // To group rank 0 alone: the addresses from which its store takes clients; none: from any.
  std::vector<std::string> store_clients;
};

enum class StopKind {
  kAbort,       // a peer is gone: the workers cannot finish their step
  kCheckpoint,  // all are healthy: finish the step and save first
};

struct Stop {
  StopKind kind = StopKind::kAbort;
  std::string why;
};

enum class Outcome { kSucceeded, kFailed, kTimedOut, kLeft };

struct Close {
  Outcome outcome = Outcome::kFailed;
  std::string why;
  std::optional<WorkerFailure> first_failure;
};

struct Welcome {
  absl::Duration lease;
  absl::Duration heartbeat_interval;
  bool resumed = false;
  bool survives_restart = false;
  bool awaits_old_workers = false;  // CAPABILITY_OLD_WORKERS; an older daemon does not
  int64_t term = 0;                 // of the daemon's leadership; 0: it is alone
};

struct Heard {};  // one Heartbeat; the event's epoch is the heartbeat's

// A viewer looks at the workers' output: the agent publishes it by
// rendezvous/client/log_publication.h.
struct LogsWanted {
  WatchId watch_id;
  LogFilter filter;
  int tail = 0;  // -1: all
  bool follow = false;
  uint64_t next_line = 0;
};

// The daemon ends, and an agent of the job may go on in its place.
struct HandOver {
  std::string state;  // for that agent, by journal/record_wire.h; "": another one has it
};

struct DaemonEvent {
  Epoch epoch;  // the job's current one
  std::variant<Welcome, Assignment, Stop, Close, Heard, LogsWanted, HandOver> body;
};

}  // namespace convene::rendezvous

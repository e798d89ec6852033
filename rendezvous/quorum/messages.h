// PURE. What agents and the daemon tell each other, as values: proto/rendezvous.proto without the
// wire. Its comments hold here too.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/time/time.h"
#include "tools/base/strong_int.h"

namespace convene::rendezvous {

// What a daemon takes; it refuses a Hello with more.
inline constexpr int kMostNodesPerJob = 65536;
inline constexpr int kMostWorkersPerNode = 4096;

struct Hello {
  std::string job_id;
  std::string host;
  int node_rank = -1;  // -1: not given
  int local_world_size = 1;
  int nodes_min = 1;
  int nodes_max = 1;
  int nodes_expected = 0;  // 0: not known
  int max_restarts = 0;
  absl::Duration join_timeout = absl::Minutes(10);
  absl::Duration last_call = absl::Seconds(5);
  absl::Duration lease = absl::Seconds(5);
  Epoch last_epoch;
};

struct Ready {
  std::string store_host;
  int store_port = 0;
};

struct Heartbeat {};

struct WorkerFailure {
  int global_rank = -1;
  int local_rank = -1;
  std::string host;
  int64_t pid = 0;
  int exit_code = 0;  // valid when signal is 0
  int signal = 0;
  std::string why;                          // "killed by SIGKILL", "exit code 3"
  std::vector<std::string> last_log_lines;  // at most 20, each at most 500 bytes
  bool costs_budget = true;                 // false for exit code 75
  bool is_final = false;                    // a restart would end the same way: bad usage
};

struct WorkersSucceeded {};

struct Leave {
  std::string why;
};

using AgentEvent = std::variant<Ready, Heartbeat, WorkerFailure, WorkersSucceeded, Leave>;

struct Assignment {
  int group_rank = 0;
  int group_world_size = 1;
  int first_global_rank = 0;
  int world_size = 1;
  std::string store_host;
  int store_port = 0;
  int restart_count = 0;
  int max_restarts = 0;
  std::string why;
};

enum class StopKind {
  kAbort,       // a peer is gone: what runs cannot finish its step
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
};

struct DaemonEvent {
  Epoch epoch;  // the job's current one
  std::variant<Welcome, Assignment, Stop, Close> body;
};

}  // namespace convene::rendezvous

// PURE. A job as `convene status` shows it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "rendezvous/quorum/agent_id.h"
#include "rendezvous/quorum/messages.h"
#include "tools/base/strong_int.h"

namespace convene::rendezvous {

struct NodeView {
  std::string host;
  AgentId agent;
  int node_rank = -1;
  int local_world_size = 1;
  int group_rank = -1;  // -1: not in the current epoch
  std::string state;    // joining, ready, running, succeeded, spare, waiting, cooling down, away
  std::string why;      // the reason of the state, where it is not plain, or when it ends
  absl::Duration heard_ago;
  absl::Duration lease;  // 0: not known, as for who asks by the wire
  std::optional<WorkerProgress> progress;
  std::vector<RankProgress> ranks;  // by local rank

  // The words of a node in an earlier epoch are no news of the present one.
  bool tells_progress() const { return group_rank >= 0 && progress.has_value(); }
};

// A job that an agent's end may harm, where that agent hosts the daemon.
struct ServedJob {
  std::string id;
  Epoch epoch;
  bool has_workers = false;    // of that epoch
  bool has_successor = false;  // an agent of it may serve in that agent's place
};

struct FailureView {
  Epoch epoch;
  std::string what;  // one line: the failed worker or node, and how it ended
  absl::Duration ago;
};

// A part of the job that holds the others up.
struct StragglerView {
  std::string kind;  // rank, node, link, disk
  int rank = -1;     // global; of a node its first one
  std::string host;
  double slower_by = 0;  // 0.3: its steps take 30 % longer than those of its like
  std::string why;       // one line
  absl::Duration since;  // for so long
};

// A decision of the daemon, or news that it had, as in its log.
struct EventView {
  int64_t number = 0;  // 1, 2, ... in this job
  absl::Time time;     // by the daemon's clock
  std::string kind;
  std::string text;
  Epoch epoch;
};

// One failed epoch.
struct IncidentView {
  int64_t number = 0;  // 1, 2, ... in this job
  Epoch epoch;
  std::string verdict;  // code, node, network, data, kill, unknown
  std::string cause;    // one line
  absl::Time time;      // by the daemon's clock
  // The rest of the report (incident.h).
  std::string certainty;  // sure, likely, a guess
  std::vector<std::string> evidence;
  std::string host;
  std::vector<WorkerFailure> failures;
  std::vector<std::string> places;
  std::string outcome;
  int times_here = 1;
};

struct JobView {
  std::string job_id;
  std::string phase;  // forming, running, stopping, succeeded, failed
  Epoch epoch;
  Epoch floor;            // epochs up to it are of earlier runs of this name; not on the wire
  std::string why;        // the last decision's reason
  int restart_count = 0;  // failures that cost the budget, the last one of a failed job too
  int failures_outside_window = 0;  // those of restart_count that no longer count for max_restarts
  int max_restarts = 0;
  int nodes_min = 1;
  int nodes_max = 1;
  std::vector<NodeView> nodes;             // by group rank, then host
  std::vector<FailureView> last_failures;  // newest first, at most 8
  std::vector<StragglerView> stragglers;   // the slowest first, at most 32
  // These two only where the job was asked for by its id.
  std::vector<EventView> events;        // oldest first, the last 256
  std::vector<IncidentView> incidents;  // newest first, at most 32
};

}  // namespace convene::rendezvous

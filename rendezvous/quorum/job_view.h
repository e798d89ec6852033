// PURE. A job as `convene status` shows it.
#pragma once

#include <string>
#include <vector>

#include "tools/base/strong_int.h"

namespace convene::rendezvous {

struct NodeView {
  std::string host;
  Incarnation incarnation;
  int node_rank = -1;
  int local_world_size = 1;
  int group_rank = -1;  // -1: not in the current epoch
  std::string state;    // joining, ready, running, succeeded
};

struct JobView {
  std::string job_id;
  std::string phase;  // forming, running, stopping, succeeded, failed
  Epoch epoch;
  std::string why;  // the last decision's reason
  int restart_count = 0;
  int max_restarts = 0;
  int nodes_min = 1;
  int nodes_max = 1;
  std::vector<NodeView> nodes;  // by group rank, then host
};

}  // namespace convene::rendezvous

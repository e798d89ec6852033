#include "launcher/status_text.h"

#include <catch2/catch.hpp>

namespace convene::launcher {
namespace {

TEST_CASE("a job is shown with its reason and a line for each node") {
  rendezvous::JobView job;
  job.job_id = "j";
  job.phase = "running";
  job.epoch = Epoch(3);
  job.why = "all 2 nodes are there";
  job.max_restarts = 5;
  job.nodes_max = 2;
  rendezvous::NodeView node;
  node.host = "node001";
  node.local_world_size = 8;
  node.group_rank = 0;
  node.state = "running";
  job.nodes.push_back(node);
  node.host = "n2";
  node.group_rank = -1;
  node.state = "joining";
  job.nodes.push_back(node);
  CHECK(StatusText({job}) ==
        "job j: running, epoch 3, 2 nodes (--nnodes 1:2), restarts 0 of 5\n"
        "  all 2 nodes are there\n"
        "  group  host     workers  state\n"
        "      0  node001        8  running\n"
        "      -  n2             8  joining\n");
  CHECK(StatusText({}) == "no jobs\n");
}

}  // namespace
}  // namespace convene::launcher

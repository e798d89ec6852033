#include "rendezvous/wire/status_json.h"

#include <catch2/catch.hpp>

namespace convene::rendezvous {
namespace {

TEST_CASE("JSON has every field by its name in the proto, on one line") {
  JobView job;
  job.job_id = "a \"b\"\n";
  job.phase = "running";
  job.epoch = Epoch(7);
  job.nodes.emplace_back();
  job.nodes.back().host = "node1";
  job.nodes.back().progress = WorkerProgress{12, 3.5, "step"};
  CHECK(
      StatusJson({job}) ==
      R"({"jobs":[{"job_id":"a \"b\"\n","phase":"running","epoch":"7","why":"",)"
      R"("restart_count":0,"max_restarts":0,"nodes_min":1,"nodes_max":1,)"
      R"("nodes":[{"host":"node1","agent_id":"0","node_rank":-1,"local_world_size":1,)"
      R"("group_rank":-1,"state":"","why":"","heard_seconds_ago":0,)"
      R"("progress":{"step":"12","steps_per_second":3.5,"phase":"step"},"ranks":[]}],)"
      R"("last_failures":[],"stragglers":[],"events":[],"incidents":[],"failures_outside_window":0}]})");
  CHECK(StatusJson({}) == R"({"jobs":[]})");
}

}  // namespace
}  // namespace convene::rendezvous

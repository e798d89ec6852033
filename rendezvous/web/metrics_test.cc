#include "rendezvous/web/metrics.h"

#include <catch2/catch.hpp>
#include <string>

#include "absl/strings/match.h"
#include "absl/time/time.h"

namespace convene::rendezvous {
namespace {

JobView Job(const std::string& id, const std::string& phase) {
  JobView job;
  job.job_id = id;
  job.phase = phase;
  return job;
}

TEST_CASE("jobs are counted by phase, and each run has its epoch, nodes and restarts") {
  JobView job = Job("llama", "running");
  job.epoch = Epoch(3);
  job.restart_count = 2;
  job.nodes.resize(2);
  job.nodes[0].group_rank = 0;
  const std::string text = MetricsText({job, Job("b", "running")}, {}, {}, {});
  for (const char* line :
       {"convene_jobs{phase=\"running\"} 2\n", "convene_jobs{phase=\"failed\"} 0\n",
        "convene_nodes{run=\"llama\"} 2\n", "convene_nodes{run=\"b\"} 0\n",
        "convene_nodes_in_epoch{run=\"llama\"} 1\n", "convene_epoch{run=\"llama\"} 3\n",
        "convene_restarts_total{run=\"llama\"} 2\n"}) {
    INFO(line);
    CHECK(absl::StrContains(text, line));
  }
}

TEST_CASE("a run's name cannot break out of its label") {
  const std::string text = MetricsText({Job("a\"} 1\nb\\", "running")}, {}, {}, {});
  CHECK(absl::StrContains(text, "convene_epoch{run=\"a\\\"} 1\\nb\\\\\"} 0\n"));
}

TEST_CASE("the histogram is cumulative, and its bounds belong to the lower bucket") {
  DaemonCounters counters;
  counters.decisions.Observe(absl::Microseconds(10));
  counters.decisions.Observe(absl::Microseconds(30));
  counters.decisions.Observe(absl::Seconds(3));
  const std::string text = MetricsText({}, counters, {}, {});
  for (const char* line :
       {"# TYPE convene_decision_seconds histogram\n",
        "convene_decision_seconds_bucket{le=\"1e-05\"} 1\n",
        "convene_decision_seconds_bucket{le=\"2.5e-05\"} 1\n",
        "convene_decision_seconds_bucket{le=\"5e-05\"} 2\n",
        "convene_decision_seconds_bucket{le=\"0.25\"} 2\n",
        "convene_decision_seconds_bucket{le=\"+Inf\"} 3\n", "convene_decision_seconds_count 3\n"}) {
    INFO(line);
    CHECK(absl::StrContains(text, line));
  }
}

TEST_CASE("the store tells what it holds, for whom, and what it refused") {
  StoreServer::Counts counts;
  counts.budget = {.bytes = 300,
                   .bytes_max = 1000,
                   .refusals = 2,
                   .largest = {{"/torch.rendezvous.a", 200}, {std::string("\xff\"/\0b", 5), 100}}};
  const std::string text = MetricsText({}, {}, counts, {});
  for (const char* line : {"convene_store_bytes 300\n", "convene_store_bytes_max 1000\n",
                           "convene_store_refusals_total 2\n",
                           "convene_store_run_bytes{keys=\"/torch.rendezvous.a\"} 200\n",
                           "convene_store_run_bytes{keys=\"?\\\"/"}) {
    INFO(line);
    CHECK(absl::StrContains(text, line));
  }
}

TEST_CASE("the process is seen as it is") {
  const ProcessUsage usage = ReadProcessUsage();
  CHECK(usage.resident_bytes > 1 << 20);
  CHECK(usage.virtual_bytes >= usage.resident_bytes);
  CHECK(usage.open_fds >= 3);
  CHECK(usage.most_fds >= usage.open_fds);
  CHECK(usage.start_time_seconds > 1.7e9);  // after 2023
}

}  // namespace
}  // namespace convene::rendezvous

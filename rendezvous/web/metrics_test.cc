#include "rendezvous/web/metrics.h"

#include <catch2/catch.hpp>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

namespace convene::rendezvous {
namespace {

const CurvesOf kNoCurves = [](const std::string&, auto use) { use(nullptr); };

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
  const std::string text = MetricsText({job, Job("b", "running")}, {}, {}, {}, kNoCurves);
  for (const char* line :
       {"convene_jobs{phase=\"running\"} 2\n", "convene_jobs{phase=\"failed\"} 0\n",
        "convene_nodes{run=\"llama\"} 2\n", "convene_nodes{run=\"b\"} 0\n",
        "convene_nodes_in_epoch{run=\"llama\"} 1\n", "convene_epoch{run=\"llama\"} 3\n",
        "convene_restarts_total{run=\"llama\"} 2\n"}) {
    INFO(line);
    CHECK(absl::StrContains(text, line));
  }
}

JobView JobOfRanks(const std::string& id, int ranks) {
  JobView job = Job(id, "running");
  NodeView& node = job.nodes.emplace_back();
  node.group_rank = 0;
  node.local_world_size = ranks;
  node.progress = WorkerProgress{41, 2.5, "step"};
  for (int i = 0; i < ranks; ++i) {
    node.ranks.push_back({.local_rank = i,
                          .compute_ms = 100.0 + i,
                          .wait_ms = 50,
                          .checkpoint_ms = 7,
                          .loss = 2.5,
                          .tokens_per_second = 1000,
                          .memory_peak_bytes = 1 << 30});
  }
  return job;
}

TEST_CASE("the end of the daemon's certificate is a date, and a daemon without one has no sample") {
  CHECK(absl::StrContains(CertificateMetricText(absl::FromUnixSeconds(1796785200)),
                          "gauge\nconvene_certificate_expires_seconds 1796785200\n"));
  CHECK(CertificateMetricText(absl::InfiniteFuture()).empty());
}

TEST_CASE("a number that is none has no sign, which Prometheus would refuse") {
  for (const double none :
       {std::numeric_limits<double>::quiet_NaN(), -std::numeric_limits<double>::quiet_NaN()}) {
    JobView job = JobOfRanks("a", 1);
    job.nodes[0].ranks[0].loss = none;
    const std::string text = MetricsText({job}, {}, {}, {}, kNoCurves);
    CHECK(absl::StrContains(text, "convene_training_loss{run=\"a\"} NaN\n"));
  }
}

int Count(const std::string& text, const std::string& part) {
  int count = 0;
  for (size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST_CASE("a job's training is measured in base units, and what is not told has no sample") {
  JobView job = JobOfRanks("a", 4);
  job.stragglers.resize(1);
  JobCurves curves;
  for (int i = 0; i < 2; ++i) {
    job.nodes[0].progress->step = 40 + i;
    curves.Add(MonotonicTime::FromEpoch(absl::Seconds(i)), absl::FromUnixSeconds(i), {job});
  }
  const CurvesOf curves_of = [&](const std::string& id, auto use) { use(curves.Find(id)); };
  const std::string text = MetricsText({job, Job("b", "running")}, {}, {}, {}, curves_of);
  for (const char* line :
       {"convene_training_step{run=\"a\"} 41\n",
        "convene_training_steps_per_second{run=\"a\"} 2.5\n",
        "convene_training_tokens_per_second{run=\"a\"} 4000\n",
        "convene_training_loss{run=\"a\"} 2.5\n", "convene_training_goodput_ratio{run=\"a\"} 1\n",
        "convene_ranks{run=\"a\"} 4\n", "convene_ranks{run=\"b\"} 0\n",
        "convene_step_checkpoint_seconds{run=\"a\",rank_is=\"longest\"} 0.007",
        "convene_stragglers{run=\"a\"} 1\n", "convene_stragglers{run=\"b\"} 0\n",
        "convene_rank_memory_peak_bytes{run=\"a\"} 1073741824\n",
        "convene_step_wait_seconds{run=\"a\",rank_is=\"longest\"} 0.05",
        "convene_step_compute_seconds{run=\"a\",rank_is=\"median\"} 0.102",
        "convene_step_compute_seconds{run=\"a\",rank_is=\"longest\"} 0.103",
        "convene_rank_step_compute_seconds{run=\"a\",rank=\"3\"} 0.103"}) {
    INFO(line);
    CHECK(absl::StrContains(text, line));
  }
  CHECK(Count(text, "{run=\"b\"} ") ==
        6);  // nodes, nodes in the epoch, ranks, epoch, restarts, stragglers
}

TEST_CASE("single ranks have samples in small jobs only, and few in all") {
  CHECK(Count(MetricsText({JobOfRanks("a", kMostRanksMeasured + 1)}, {}, {}, {}, kNoCurves),
              ",rank=\"") == 0);
  std::vector<JobView> jobs;
  for (int i = 0; i < 50; ++i) jobs.push_back(JobOfRanks(absl::StrCat(i), kMostRanksMeasured));
  const std::string text = MetricsText(jobs, {}, {}, {}, kNoCurves);
  CHECK(Count(text, "convene_rank_step_compute_seconds{") == kMostRanksMeasuredInAll);
  CHECK(Count(text, "rank_is=\"median\"") == 200);
}

TEST_CASE("a rank that tells no times has no samples of them") {
  JobView job = JobOfRanks("a", 2);
  RankProgress& untold = job.nodes[0].ranks[1];
  untold.compute_ms = untold.wait_ms = 0;
  const std::string some = MetricsText({job}, {}, {}, {}, kNoCurves);
  CHECK(Count(some, "convene_rank_step_compute_seconds{run=\"a\",rank=\"0\"} 0.1") == 1);
  CHECK(Count(some, ",rank=\"1\"") == 0);
  CHECK(Count(some, "convene_step_compute_seconds{run=\"a\",rank_is=\"median\"} 0.1") == 1);
  job.nodes[0].ranks.erase(job.nodes[0].ranks.begin());
  CHECK(Count(MetricsText({job}, {}, {}, {}, kNoCurves), "rank_is=") == 0);
}

TEST_CASE("a run's name cannot break out of its label") {
  const std::string text = MetricsText({Job("a\"} 1\nb\\", "running")}, {}, {}, {}, kNoCurves);
  CHECK(absl::StrContains(text, "convene_epoch{run=\"a\\\"} 1\\nb\\\\\"} 0\n"));
}

TEST_CASE("the histogram is cumulative, and its bounds belong to the lower bucket") {
  DaemonCounters counters;
  counters.decisions.Observe(absl::Microseconds(10));
  counters.decisions.Observe(absl::Microseconds(30));
  counters.decisions.Observe(absl::Seconds(3));
  const std::string text = MetricsText({}, counters, {}, {}, kNoCurves);
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
  const std::string text = MetricsText({}, {}, counts, {}, kNoCurves);
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

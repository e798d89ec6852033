#include "rendezvous/web/page_json.h"

#include <rapidjson/document.h>

#include <catch2/catch.hpp>
#include <limits>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace convene::rendezvous {
namespace {

const CurvesOf kNoCurves = [](const std::string&, auto use) { use(nullptr); };

// A job of `nodes` nodes with one worker each that tells all there is.
JobView Job(int nodes, int workers = 1) {
  JobView job;
  job.job_id = "llama";
  job.phase = "running";
  job.epoch = Epoch(3);
  job.nodes_max = nodes;
  for (int i = 0; i < nodes; ++i) {
    NodeView& node = job.nodes.emplace_back();
    node.host = absl::StrCat("node", i, ".cluster.example");
    node.agent = AgentId(std::numeric_limits<uint64_t>::max() - static_cast<uint64_t>(i));
    node.group_rank = i;
    node.local_world_size = workers;
    node.state = "running";
    node.progress = WorkerProgress{12345, 3.25, "step"};
    for (int j = 0; j < workers; ++j) {
      node.ranks.push_back({.local_rank = j,
                            .step = 12345,
                            .steps_per_second = 3.25,
                            .phase = "step",
                            .compute_ms = 241.2345678,
                            .wait_ms = 52.3456,
                            .data_ms = 1.25,
                            .loss = 2.345678912,
                            .tokens_per_second = 12345.678,
                            .memory_bytes = int64_t{61} << 30,
                            .memory_peak_bytes = int64_t{70} << 30});
    }
  }
  return job;
}

rapidjson::Document Parsed(const std::string& json) {
  rapidjson::Document document;
  document.Parse(json.data(), json.size());
  INFO(json);
  REQUIRE_FALSE(document.HasParseError());
  return document;
}

TEST_CASE("a job's page has its nodes, its ranks with their global numbers, and its news") {
  JobView job = Job(2, 2);
  job.nodes[1].heard_ago = absl::Seconds(12);
  job.last_failures.push_back({Epoch(2), "rank 3 on node1: exit code 1", absl::Seconds(61)});
  job.stragglers.push_back({"rank", 2, "node1", 0.3, "slow", absl::Seconds(5)});
  job.events.push_back({7, absl::FromUnixMicros(5000001), "failure", "rank 3 failed", Epoch(2)});
  job.incidents.push_back({1, Epoch(2), "code", "exit code 1", absl::FromUnixSeconds(5)});
  const auto page = Parsed(JobJson(job, kNoCurves));
  CHECK(page["id"] == "llama");
  CHECK(page["sample"][0].GetInt() == 12345);
  CHECK(page["sample"][3].GetDouble() == Approx(4 * 12345.678).epsilon(1e-5));
  CHECK(page["node_rows"].Size() == 2);
  CHECK(page["node_rows"][1][1] == "18446744073709551614");
  CHECK(page["node_rows"][1][6].GetInt() == 2);
  CHECK(page["node_rows"][0][7].GetInt() == 0);
  CHECK(page["node_rows"][1][7].GetInt() == 12);
  // A node speaks each third of its lease.
  job.nodes[1].lease = absl::Seconds(60);
  CHECK(Parsed(JobJson(job, kNoCurves))["node_rows"][1][7].GetInt() == 0);
  job.nodes[1].heard_ago = absl::Seconds(31);
  CHECK(Parsed(JobJson(job, kNoCurves))["node_rows"][1][7].GetInt() == 31);
  REQUIRE(page["rank_rows"].Size() == 4);
  CHECK(page["rank_rows"][3][0].GetInt() == 1);
  CHECK(page["rank_rows"][3][1].GetInt() == 3);
  CHECK(page["rank_rows"][3][5].GetDouble() == Approx(241.235));
  CHECK(page["failures"][0][1] == "rank 3 on node1: exit code 1");
  CHECK(page["events"][0][1].GetInt64() == 5000001);
  CHECK(page["stragglers_now"][0][2] == "node1");
  CHECK(page["incidents"][0][2] == "code");
  CHECK(page["goodput"].IsNull());
}

TEST_CASE("what is not told is null, and a loss that is no number is told") {
  JobView job = Job(1);
  job.nodes[0].ranks[0].loss = std::numeric_limits<double>::quiet_NaN();
  job.nodes[0].ranks[0].tokens_per_second = 0;
  job.nodes[0].progress->steps_per_second = 0;
  const auto page = Parsed(JobJson(job, kNoCurves));
  CHECK(page["sample"][1].IsNull());
  CHECK(page["sample"][2] == "NaN");
  CHECK(page["sample"][3].IsNull());
  CHECK(page["rank_rows"][0][9] == "NaN");
  job.nodes[0].group_rank = -1;
  const auto without = Parsed(JobJson(job, kNoCurves));
  CHECK(without["rank_rows"].Empty());
  CHECK(without["node_rows"][0][6].GetInt() == -1);
  CHECK(without["node_rows"][0][8].IsNull());
  CHECK(without["node_rows"][0][10] == "");
}

TEST_CASE("names from outside stay texts") {
  JobView job = Job(1);
  job.job_id = "a\"</script><b>\n";
  job.why = "\x01";
  const auto page = Parsed(JobJson(job, kNoCurves));
  CHECK(page["id"] == "a\"</script><b>\n");
  CHECK(Parsed(JobsJson({job}, kNoCurves))["jobs"][0]["why"] == "\x01");
}

TEST_CASE("curves and goodput are the job's own") {
  JobCurves curves;
  for (int i = 0; i < 3; ++i) {
    JobView job = Job(1);
    job.nodes[0].progress->step = i;
    curves.Add(MonotonicTime::FromEpoch(absl::Seconds(i)), absl::FromUnixSeconds(1000 + i), {job});
  }
  const CurvesOf of = [&](const std::string& id, auto use) { use(curves.Find(id)); };
  const auto page = Parsed(JobJson(Job(1), of));
  REQUIRE(page["curve"].Size() == 3);
  CHECK(page["curve"][2][0].GetInt() == 1002);
  CHECK(page["curve"][2][1].GetInt() == 2);
  CHECK(page["curve"][2][2].GetDouble() == Approx(2.34568));
  CHECK(page["goodput"].GetDouble() == Approx(1));
}

TEST_CASE("1,000 nodes are small, and more nodes than a page shows are cut") {
  CHECK(JobJson(Job(1000), kNoCurves).size() < 200000);
  CHECK(Parsed(JobJson(Job(kMostPageNodes + 10), kNoCurves))["node_rows"].Size() == kMostPageNodes);
}

TEST_CASE("log lines keep their marks and words") {
  FeedAnswer answer = {.feed = 5, .next = 9, .skipped = 2, .lost = 3, .over = "the run is over"};
  answer.lines.push_back({9, 77, 3, true, "h", "a \"b\""});
  const auto page = Parsed(LogsJson(answer));
  CHECK(page["next"].GetInt() == 9);
  CHECK(page["over"] == "the run is over");
  CHECK(page["lines"][0][4] == "a \"b\"");
  CHECK(page["lines"][0][3].GetBool());
}

}  // namespace
}  // namespace convene::rendezvous

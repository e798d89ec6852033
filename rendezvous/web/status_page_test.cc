#include "rendezvous/web/status_page.h"

#include <catch2/catch.hpp>
#include <string>

#include "absl/strings/match.h"

namespace convene::rendezvous {
namespace {

TEST_CASE("the page shows jobs, nodes and failures, and lets no name become markup") {
  JobView job;
  job.job_id = "<script>";
  job.phase = "running";
  job.why = "all & sundry";
  job.nodes.emplace_back();
  job.nodes.back().host = "node\"1";
  job.nodes.back().group_rank = 0;
  job.nodes.back().progress = WorkerProgress{41, 2.5, "step"};
  job.last_failures.push_back({Epoch(2), "rank 3 on node1: exit code 1", absl::Seconds(61)});
  const std::string page = StatusPage({job});
  CHECK_FALSE(absl::StrContains(page, "<script>"));
  CHECK(absl::StrContains(page, "&lt;script&gt;"));
  CHECK(absl::StrContains(page, "all &amp; sundry"));
  CHECK(absl::StrContains(page, "node&quot;1"));
  CHECK(absl::StrContains(page, "41"));
  CHECK(absl::StrContains(page, "epoch 2, 1m1s ago: rank 3 on node1: exit code 1"));
}

TEST_CASE("a large job's page is bounded") {
  JobView job;
  job.nodes.resize(10000);
  const std::string page = StatusPage({job});
  CHECK(page.size() < 200000);
  CHECK(absl::StrContains(page, "and 9500 more"));
}

}  // namespace
}  // namespace convene::rendezvous

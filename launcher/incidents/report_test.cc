#include "launcher/incidents/report.h"

#include <catch2/catch.hpp>

namespace convene::launcher {
namespace {

rendezvous::IncidentView OutOfMemory() {
  return {.number = 3,
          .epoch = Epoch(7),
          .verdict = "node",
          .cause = "rank 1 on b: killed by SIGKILL",
          .time = absl::FromUnixSeconds(1'700'000'000),
          .certainty = "sure",
          .evidence = {"the kernel had no memory left: Out of memory: Killed process 77"},
          .host = "b",
          .failures = {{.global_rank = 1,
                        .host = "b",
                        .pid = 77,
                        .signal = 9,
                        .why = "killed by SIGKILL",
                        .last_log_lines = {"step 17"},
                        .error_lines = {"MemoryError"},
                        .kernel_lines = {"Out of memory: Killed process 77"}}},
          .places = {"rank 1 on b: step 17, step"},
          .outcome = "epoch 8 formed: 2 nodes"};
}

TEST_CASE("a worker's words do not steer the terminal") {
  rendezvous::IncidentView incident = OutOfMemory();
  incident.failures[0].last_log_lines = {"\x1B]0;OWNED\a"};
  incident.cause =
      "\xC2\x9B"
      "2J";
  const std::string text = IncidentReport(incident, absl::UTCTimeZone());
  CHECK(text.find("?]0;OWNED?") != text.npos);
  CHECK(text.find("first cause: ?2J") != text.npos);
  rendezvous::JobView job;
  job.incidents = {incident};
  CHECK(IncidentList(job, absl::UTCTimeZone()).find("?2J") != std::string::npos);
}

TEST_CASE("a report tells the verdict, its evidence, each failure and what was done") {
  CHECK(IncidentReport(OutOfMemory(), absl::UTCTimeZone()) ==
        R"(#3  2023-11-14 22:13:20  epoch 7  node (sure)
  first cause: rank 1 on b: killed by SIGKILL
  evidence:
    the kernel had no memory left: Out of memory: Killed process 77
  rank 1 on b (pid 77): killed by SIGKILL
  its error:
    MemoryError
  its last lines:
    step 17
  the kernel:
    Out of memory: Killed process 77
  where ranks stood:
    rank 1 on b: step 17, step
  then: epoch 8 formed: 2 nodes
)");
}

TEST_CASE("the list has a line for each, and says what happens again and again") {
  CHECK(IncidentList(rendezvous::JobView(), absl::UTCTimeZone()) ==
        "no epoch of this run has failed\n");
  rendezvous::IncidentView third = OutOfMemory();
  third.times_here = 3;
  rendezvous::JobView job;
  job.incidents = {third, OutOfMemory()};
  CHECK(IncidentList(job, absl::UTCTimeZone()) ==
        "#3  2023-11-14 22:13:20  epoch 7  node (sure)  rank 1 on b: killed by SIGKILL (the same "
        "failure on b, 3 times: look at that node)\n"
        "#3  2023-11-14 22:13:20  epoch 7  node (sure)  rank 1 on b: killed by SIGKILL\n");
  // A bug of the program is no node's.
  third.verdict = "code";
  job.incidents = {third};
  CHECK(IncidentList(job, absl::UTCTimeZone()).find("b, 3 times)\n") != std::string::npos);
  third.certainty = "a guess";
  job.incidents = {third};
  CHECK(IncidentList(job, absl::UTCTimeZone()).find("look at that node") != std::string::npos);
}

TEST_CASE("a daemon that keeps no reports has its failures listed") {
  rendezvous::JobView job;
  job.last_failures = {
      {.epoch = Epoch(4), .what = "rank 5: exit code 1", .ago = absl::Seconds(90)}};
  CHECK(IncidentList(job, absl::UTCTimeZone()) ==
        "this daemon keeps no reports; its last failures, newest first:\n"
        "  epoch 4, 1m30s ago: rank 5: exit code 1\n");
}

}  // namespace
}  // namespace convene::launcher

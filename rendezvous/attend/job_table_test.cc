#include "rendezvous/attend/job_table.h"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "rendezvous/quorum/job.h"
#include "rendezvous/quorum/messages.h"
#include "tools/base/clock.h"
#include "tools/base/testing/status_testing.h"

namespace convene::rendezvous {
namespace {

Hello HelloTo(const std::string& job_id, int nodes = 1) {
  Hello hello;
  hello.job_id = job_id;
  hello.host = "node0";
  hello.nodes_min = hello.nodes_max = nodes;
  return hello;
}

MonotonicTime At(absl::Duration duration) { return MonotonicTime::FromEpoch(duration); }

constexpr Incarnation kIncarnation(7);

// Joins as `id`, works alone through one epoch, and succeeds; returns the epoch.
Epoch WorkAlone(JobTable* table, MonotonicTime now, MemberId id, const std::string& job_id) {
  Outbox outbox;
  REQUIRE_OK(table->Join(now, id, kIncarnation, HelloTo(job_id), &outbox));
  table->Receive(now, id, kIncarnation, Epoch(), Ready{"node0", 1}, &outbox);
  const Epoch epoch = std::get<DaemonEvent>(outbox.items.back().what).epoch;
  table->Receive(now, id, kIncarnation, epoch, WorkersSucceeded(), &outbox);
  REQUIRE(std::holds_alternative<absl::Status>(outbox.items.back().what));
  return epoch;
}

TEST_CASE("a finished job's id begins a new job with higher epochs") {
  JobTable table;
  CHECK(WorkAlone(&table, At({}), MemberId(1), "job") == Epoch(1));
  CHECK(table.Views(At({}), "job")->front().phase == "succeeded");
  CHECK(WorkAlone(&table, At({}), MemberId(2), "job") == Epoch(2));
}

TEST_CASE("a new job of an id wants the reports of the one before it forgotten, once") {
  JobTable table;
  table.StartRecording();
  WorkAlone(&table, At({}), MemberId(1), "job");
  CHECK(table.TakeIncidents().replaced.empty());
  Outbox outbox;
  REQUIRE_OK(table.Join(At({}), MemberId(2), kIncarnation, HelloTo("job"), &outbox));
  CHECK(table.TakeIncidents().replaced == std::set<std::string>{"job"});
  CHECK(table.TakeIncidents().replaced.empty());
}

TEST_CASE("an agent that comes back to a job that succeeded without it does not begin it again") {
  JobTable table;
  const Epoch epoch = WorkAlone(&table, At({}), MemberId(1), "job");
  Hello hello = HelloTo("job");
  hello.last_epoch = epoch;
  Outbox outbox;
  REQUIRE_OK(table.Join(At({}), MemberId(2), Incarnation(8), hello, &outbox));
  REQUIRE(outbox.items.size() == 2);
  const DaemonEvent& event = std::get<DaemonEvent>(outbox.items[0].what);
  CHECK(event.epoch == epoch);
  CHECK(std::get<Close>(event.body).outcome == Outcome::kSucceeded);
  CHECK_OK(std::get<absl::Status>(outbox.items[1].what));
  CHECK(table.Views(At({}), "job")->front().phase == "succeeded");
}

TEST_CASE("an agent of a later job than the one remembered begins anew") {
  JobTable table;
  Hello hello = HelloTo("job");
  hello.last_epoch = WorkAlone(&table, At({}), MemberId(1), "job").Next();
  Outbox outbox;
  REQUIRE_OK(table.Join(At({}), MemberId(2), Incarnation(8), hello, &outbox));
  REQUIRE(outbox.items.size() == 1);
  CHECK(std::holds_alternative<Welcome>(std::get<DaemonEvent>(outbox.items[0].what).body));
}

TEST_CASE("an agent that comes back after all others left begins anew: nobody did the work") {
  JobTable table;
  Outbox outbox;
  REQUIRE_OK(table.Join(At({}), MemberId(1), kIncarnation, HelloTo("job"), &outbox));
  table.Receive(At({}), MemberId(1), kIncarnation, Epoch(), Ready{"node0", 1}, &outbox);
  table.Receive(At({}), MemberId(1), kIncarnation, Epoch(1), Leave{"SIGTERM"}, &outbox);
  Hello hello = HelloTo("job");
  hello.last_epoch = Epoch(1);
  outbox.items.clear();
  REQUIRE_OK(table.Join(At({}), MemberId(2), Incarnation(8), hello, &outbox));
  CHECK(std::holds_alternative<Welcome>(std::get<DaemonEvent>(outbox.items[0].what).body));
}

TEST_CASE("a closed job is remembered for a while and then forgotten") {
  JobTable table;
  WorkAlone(&table, At({}), MemberId(1), "job");
  Outbox outbox;
  CHECK(table.wake_at() <= At(JobTable::kRemembered));
  table.Tick(At(JobTable::kRemembered - absl::Seconds(1)), &outbox);
  CHECK_OK(table.Views(At({}), "job"));
  table.Tick(At(JobTable::kRemembered), &outbox);
  CHECK_STATUS(table.Views(At({}), "job"), absl::StatusCode::kNotFound, "knows no job job");
  CHECK(table.wake_at() == MonotonicTime::InfiniteFuture());
}

TEST_CASE("a job that no node is in does not bind those who come after") {
  JobTable table;
  Outbox outbox;
  REQUIRE_OK(table.Join(At({}), MemberId(1), kIncarnation, HelloTo("job", 1), &outbox));
  table.Receive(At({}), MemberId(1), kIncarnation, Epoch(), Ready{"node0", 1}, &outbox);
  table.Disconnect(At({}), MemberId(1), &outbox);
  CHECK_OK(table.Join(At({}), MemberId(2), kIncarnation, HelloTo("job", 2), &outbox));
  CHECK(table.Views(At({}), "job")->front().nodes_max == 2);
}

TEST_CASE("jobs are bounded; a closed one makes room") {
  JobTable table;
  WorkAlone(&table, At({}), MemberId(1), "closed");
  Outbox outbox;
  int64_t id = 1;
  for (size_t i = 0; i < JobTable::kMostJobs; ++i) {
    REQUIRE_OK(table.Join(At({}), MemberId(++id), kIncarnation, HelloTo(absl::StrCat("job", i), 2),
                          &outbox));
  }
  CHECK_STATUS(table.Views(At({}), "closed"), absl::StatusCode::kNotFound, "closed");
  CHECK_STATUS(table.Join(At({}), MemberId(++id), kIncarnation, HelloTo("one more"), &outbox),
               absl::StatusCode::kResourceExhausted, "already serves 1024 jobs");
}

TEST_CASE("a daemon serves a job to its end, while it has a node") {
  JobTable table;
  Outbox outbox;
  CHECK(table.ServedJobs().empty());
  REQUIRE_OK(table.Join(At({}), MemberId(1), kIncarnation, HelloTo("job"), &outbox));
  REQUIRE(table.ServedJobs().size() == 1);
  CHECK(table.ServedJobs()[0].epoch == Epoch());  // It waits for its first one.
  table.Receive(At({}), MemberId(1), kIncarnation, Epoch(), Ready{"node0", 1}, &outbox);
  REQUIRE(table.ServedJobs().size() == 1);
  CHECK(table.ServedJobs()[0].id == "job");
  CHECK(table.ServedJobs()[0].epoch == Epoch(1));
  CHECK(table.ServedJobs()[0].has_workers);
  table.Receive(At({}), MemberId(1), kIncarnation, Epoch(1), WorkersSucceeded(), &outbox);
  CHECK(table.Find("job")->closed());
  CHECK(table.ServedJobs().empty());
  REQUIRE_OK(table.Join(At({}), MemberId(2), kIncarnation, HelloTo("other"), &outbox));
  table.Disconnect(At({}), MemberId(2), &outbox);
  CHECK(table.ServedJobs().empty());
}

TEST_CASE("a stream that changes its incarnation is ended with both numbers") {
  JobTable table;
  Outbox outbox;
  REQUIRE_OK(table.Join(At({}), MemberId(1), kIncarnation, HelloTo("job"), &outbox));
  table.Receive(At({}), MemberId(1), Incarnation(8), Epoch(), Heartbeat(), &outbox);
  CHECK_STATUS(std::get<absl::Status>(outbox.items.back().what), absl::StatusCode::kAborted,
               "began as incarnation 7 and now speaks as 8");
}

TEST_CASE("a senseless hello is refused with the field and what is allowed") {
  JobTable table;
  Outbox outbox;
  Hello hello = HelloTo("job", 2);
  hello.nodes_min = 3;
  CHECK_STATUS(table.Join(At({}), MemberId(1), kIncarnation, hello, &outbox),
               absl::StatusCode::kInvalidArgument, "nodes_min is 3; it must be from 1 to 2");
}

TEST_CASE("a hello whose names would steer a terminal is refused") {
  for (std::string Hello::*const name :
       {&Hello::job_id, &Hello::host, &Hello::role, &Hello::topology}) {
    for (const char* const text : {"\x1B[2J", "a\nb", "a\tb", "\xC2\x9B\x31m", "\x7F"}) {
      JobTable table;
      Outbox outbox;
      Hello hello = HelloTo("job");
      hello.*name = text;
      CHECK_STATUS(table.Join(At({}), MemberId(1), kIncarnation, hello, &outbox),
                   absl::StatusCode::kInvalidArgument, "control character");
    }
  }
  JobTable table;
  Outbox outbox;
  Hello hello = HelloTo("caf\u00e9 <1>");
  CHECK_OK(table.Join(At({}), MemberId(1), kIncarnation, hello, &outbox));
}

TEST_CASE("with recording, what tells of a decision waits for it, and nothing else does") {
  JobTable table;
  table.StartRecording();
  Outbox outbox;
  REQUIRE_OK(table.Join(At({}), MemberId(1), kIncarnation, HelloTo("job"), &outbox));
  REQUIRE_OK(table.Join(At({}), MemberId(2), kIncarnation, HelloTo("other", 2), &outbox));
  CHECK_FALSE(table.has_changes());
  table.Receive(At({}), MemberId(1), kIncarnation, Epoch(), Ready{"node0", 1}, &outbox);
  table.Receive(At({}), MemberId(1), kIncarnation, Epoch(1), Heartbeat(), &outbox);
  REQUIRE(outbox.items.size() == 4);  // two Welcomes, Assignment, Heard
  CHECK(outbox.items[1].after_change == 0);
  CHECK(outbox.items[2].after_change == 1);
  CHECK(outbox.items[3].after_change == 0);
  CHECK(table.last_change() == 1);
  const RecordChanges changes = table.TakeChanges(At({}));
  REQUIRE(changes.jobs.size() == 1);
  CHECK(changes.jobs[0].founder.job_id == "job");
  CHECK(changes.jobs[0].epoch == Epoch(1));
  CHECK_FALSE(table.has_changes());
}

TEST_CASE("a closed job is closed after a restart, too, and forgotten in its time") {
  JobTable before;
  before.StartRecording();
  const Epoch epoch = WorkAlone(&before, At({}), MemberId(1), "job");
  JobTable table;
  table.StartRecording();
  for (const JobRecord& job : before.TakeChanges(At({})).jobs) table.Restore(At({}), job);
  Hello hello = HelloTo("job");
  hello.last_epoch = epoch;
  Outbox outbox;
  REQUIRE_OK(table.Join(At({}), MemberId(2), kIncarnation, hello, &outbox));
  CHECK(std::get<Close>(std::get<DaemonEvent>(outbox.items.at(0).what).body).outcome ==
        Outcome::kSucceeded);
  table.Tick(At(JobTable::kRemembered), &outbox);
  CHECK(table.TakeChanges(At({})).forgotten == std::vector<std::string>{"job"});
}

// As recorded: node1 and node2 in epoch 1.
JobRecord TwoRun() {
  JobTable before;
  before.StartRecording();
  Outbox outbox;
  for (const int node : {1, 2}) {
    Hello hello = HelloTo("job", 2);
    hello.host = absl::StrCat("node", node);
    REQUIRE_OK(before.Join(At({}), MemberId(node), Incarnation(node), hello, &outbox));
    before.Receive(At({}), MemberId(node), Incarnation(node), Epoch(), Ready{hello.host, 1},
                   &outbox);
  }
  const RecordChanges changes = before.TakeChanges(At({}));
  REQUIRE(changes.jobs.size() == 1);
  REQUIRE(changes.jobs[0].epoch == Epoch(1));
  return changes.jobs[0];
}

TEST_CASE("a run whose nodes are not back in their lease gives way to one that contradicts it") {
  JobTable table;
  table.StartRecording();
  table.Restore(At({}), TwoRun());
  const MonotonicTime open = At(absl::Seconds(100));
  table.RenewAway(open);
  Outbox outbox;
  const Hello other = HelloTo("job", 3);
  const auto join_at = [&](MonotonicTime now) {
    if (table.wake_at() <= now) table.Tick(now, &outbox);
    static int64_t id = 10;
    return table.Join(now, MemberId(++id), Incarnation(9), other, &outbox);
  };
  for (MonotonicTime now = open; now < open + other.lease; now = now + absl::Seconds(1)) {
    CHECK_STATUS(join_at(now), absl::StatusCode::kInvalidArgument, "the job began with 2");
  }
  SECTION("none is back") {
    REQUIRE_OK(join_at(open + other.lease));
    const Job& job = *table.Find("job");
    CHECK(job.state().nodes().size() == 1);
    CHECK(job.policy().nodes_max == 3);
    CHECK(job.state().floor() == Epoch(1));
    CHECK(table.TakeIncidents().replaced == std::set<std::string>{"job"});
  }
  SECTION("one is back") {
    Hello back = HelloTo("job", 2);
    back.host = "node1";
    back.holds_place = true;
    back.running_epoch = back.last_epoch = Epoch(1);
    REQUIRE_OK(table.Join(open + other.lease - absl::Seconds(1), MemberId(1000), Incarnation(1),
                          back, &outbox));
    CHECK_STATUS(join_at(open + other.lease * 2), absl::StatusCode::kInvalidArgument, "began with");
    CHECK(table.Find("job")->state().Find(MemberId(1000)) != nullptr);
  }
}

TEST_CASE("a refused Hello is no word of a job's nodes: their silence goes on") {
  JobTable table;
  Outbox outbox;
  REQUIRE_OK(table.Join(At({}), MemberId(1), kIncarnation, HelloTo("job", 2), &outbox));
  const MonotonicTime later = At(absl::Hours(1));
  REQUIRE(table.Find("job")->state().AllSilent(later));
  CHECK_STATUS(table.Join(later, MemberId(2), Incarnation(9), HelloTo("job", 3), &outbox),
               absl::StatusCode::kInvalidArgument, "began with");
  CHECK(table.Find("job")->state().AllSilent(later));
}

TEST_CASE("an incident of an earlier daemon keeps its time, whatever the clock is set to") {
  JobTable table;
  table.set_wall_offset(absl::Hours(1));
  table.Restore(At({}), TwoRun());
  IncidentView incident;
  incident.number = 1;
  incident.epoch = Epoch(1);
  incident.time = absl::UnixEpoch() + absl::Hours(100);
  table.RestoreIncident("job", incident);
  table.set_wall_offset(absl::Hours(4));
  const auto views = table.Views(At({}), "job");
  REQUIRE_OK(views);
  REQUIRE(views->front().incidents.size() == 1);
  CHECK(views->front().incidents[0].time == incident.time);
}

TEST_CASE("a daemon whose port opens late judges leases from then on") {
  Outbox outbox;
  JobTable table;
  table.StartRecording();
  table.Restore(At({}), TwoRun());
  table.Tick(At({}), &outbox);
  table.Tick(table.wake_at(), &outbox);  // the port is closed, so that nobody can be heard
  const MonotonicTime open = At(HelloTo("job").lease * 2);
  REQUIRE(table.wake_at() > open);  // as long as nobody can be heard, nobody is judged
  table.RenewAway(open);
  CHECK(table.wake_at() == open);
  table.Tick(open, &outbox);
  Hello back = HelloTo("job", 2);
  back.host = "node1";
  back.holds_place = true;
  back.running_epoch = back.last_epoch = Epoch(1);
  REQUIRE_OK(table.Join(open + absl::Seconds(1), MemberId(3), Incarnation(1), back, &outbox));
  CHECK(table.wake_at() <= open + back.lease);
  table.Receive(open + absl::Seconds(3), MemberId(3), Incarnation(1), Epoch(1), Heartbeat(),
                &outbox);
  table.Tick(open + back.lease, &outbox);
  CHECK(table.Find("job")->state().cause() == Cause::kLoss);  // of node2
}

TEST_CASE(
    "a name that was used before keeps its epochs, though its new job has none at a restart") {
  JobTable before;
  before.StartRecording();
  const Epoch epoch = WorkAlone(&before, At({}), MemberId(1), "job");
  Outbox outbox;
  REQUIRE_OK(before.Join(At({}), MemberId(2), kIncarnation, HelloTo("job"), &outbox));
  JobTable table;
  table.StartRecording();
  for (const JobRecord& job : before.TakeChanges(At({})).jobs) table.Restore(At({}), job);
  table.Tick(At({}), &outbox);
  CHECK(WorkAlone(&table, At({}), MemberId(3), "job") > epoch);
}

TEST_CASE("a job is handed over to members of its epoch that may host, and its others hear of it") {
  JobTable table;
  Outbox outbox;
  Hello hello = HelloTo("job", 2);
  const auto join = [&](int id, bool may_host) {
    hello.host = absl::StrCat("node", id);
    hello.may_host = may_host;
    REQUIRE_OK(table.Join(At({}), MemberId(id), Incarnation(id), hello, &outbox));
  };
  join(1, true);
  join(2, false);
  CHECK(table.HandOver(At({})).empty());  // No epoch has begun, nobody can go on with it.
  CHECK_FALSE(table.ServedJobs()[0].has_successor);
  for (const int id : {1, 2}) {
    table.Receive(At({}), MemberId(id), Incarnation(id), Epoch(), Ready{"node", 1}, &outbox);
  }
  join(3, true);  // It has no seat.
  CHECK(table.ServedJobs()[0].has_successor);
  std::vector<JobTable::Succession> left = table.HandOver(At({}));
  REQUIRE(left.size() == 1);
  CHECK(left[0].successors == std::vector<MemberId>{MemberId(1)});
  CHECK(left[0].others.size() == 2);
  CHECK(left[0].job.record.epoch == Epoch(1));

  JobTable next;
  next.Restore(At({}), left[0].job.record);
  hello.host = "node2";
  hello.holds_place = true;
  hello.last_epoch = hello.running_epoch = Epoch(1);
  outbox.items.clear();
  REQUIRE_OK(next.Join(At({}), MemberId(1), Incarnation(2), hello, &outbox));
  CHECK(std::get<Welcome>(std::get<DaemonEvent>(outbox.items.at(0).what).body).resumed);

  // It ends, too.
  table.Receive(At({}), MemberId(1), Incarnation(1), Epoch(1), Leave{"SIGTERM", false, true},
                &outbox);
  CHECK(table.HandOver(At({})).empty());
  CHECK_FALSE(table.ServedJobs()[0].has_successor);
}

TEST_CASE("a table whose daemon is told to end begins no epoch, in jobs old and new") {
  JobTable table;
  Outbox outbox;
  const auto join = [&](int id, const std::string& job) {
    REQUIRE_OK(table.Join(At({}), MemberId(id), Incarnation(id), HelloTo(job), &outbox));
    table.Receive(At({}), MemberId(id), Incarnation(id), Epoch(), Ready{"node", 1}, &outbox);
  };
  join(1, "began");
  REQUIRE_OK(table.Join(At({}), MemberId(2), Incarnation(2), HelloTo("old"), &outbox));
  table.EndSoon(Incarnation(1));
  table.Receive(At({}), MemberId(2), Incarnation(2), Epoch(), Ready{"node", 1}, &outbox);
  join(3, "new");
  table.Tick(At({}), &outbox);
  for (const ServedJob& job : table.ServedJobs()) {
    INFO(job.id);
    CHECK(job.epoch == (job.id == "began" ? Epoch(1) : Epoch()));
  }
}

}  // namespace
}  // namespace convene::rendezvous

#include "rendezvous/wire/wire.h"

#include <catch2/catch.hpp>
#include <string>
#include <utility>

#include "tools/base/testing/status_testing.h"

namespace convene::rendezvous {
namespace {

TEST_CASE("a batch of lines crosses the wire whole, with bytes that are no text") {
  LogBatch batch;
  batch.watch_id = WatchId(~0ull);
  batch.agent = AgentId(7);
  batch.host = "node1";
  batch.role = "trainer";
  batch.lines = {{absl::FromUnixMicros(1234567), 9, 1, false, "loss 2.5", false},
                 {absl::FromUnixMicros(1234568), 8, 0, true, std::string("\xff\0x", 3), true}};
  batch.lost_lines = 12;
  batch.next_line = 90;
  batch.caught_up = true;
  batch.is_last = true;
  pb::LogNews news;
  *news.mutable_batch() = ToWire(batch);
  std::string bytes;
  REQUIRE(news.SerializeToString(&bytes));
  pb::LogNews there;
  REQUIRE(there.ParseFromString(bytes));
  const auto crossed = FromWire(there);
  REQUIRE_OK(crossed);
  const LogBatch& arrived = std::get<LogBatch>(*crossed);
  CHECK(arrived.watch_id == batch.watch_id);
  CHECK(arrived.agent == batch.agent);
  CHECK(arrived.host == "node1");
  CHECK(arrived.role == "trainer");
  CHECK(arrived.lost_lines == 12);
  CHECK(arrived.next_line == 90);
  CHECK(arrived.caught_up);
  CHECK(arrived.is_last);
  REQUIRE(arrived.lines.size() == 2);
  CHECK(arrived.lines[0].time == batch.lines[0].time);
  CHECK(arrived.lines[0].rank == 9);
  CHECK(arrived.lines[0].local_rank == 1);
  CHECK(!arrived.lines[0].is_stderr);
  CHECK(arrived.lines[0].text == "loss 2.5");
  CHECK(arrived.lines[1].is_stderr);
  CHECK(arrived.lines[1].is_cut);
  CHECK(arrived.lines[1].text == batch.lines[1].text);
}

TEST_CASE("what a viewer asks for crosses the wire whole") {
  LogRequest request;
  request.job_id = "run";
  request.hosts = {"node1", "node2"};
  request.filter.ranks = {1, 3};
  request.filter.local_ranks = {0};
  request.filter.without_stdout = true;
  request.tail = -1;
  request.follow = true;
  request.seen = {{AgentId(5), 77}};
  const auto crossed = FromWire(ToWire(request));
  REQUIRE_OK(crossed);
  CHECK(crossed->job_id == "run");
  CHECK(crossed->hosts == request.hosts);
  CHECK(crossed->filter.ranks == request.filter.ranks);
  CHECK(crossed->filter.local_ranks == request.filter.local_ranks);
  CHECK(crossed->filter.without_stdout);
  CHECK(!crossed->filter.without_stderr);
  CHECK(crossed->tail == -1);
  CHECK(crossed->follow);
  REQUIRE(crossed->seen.size() == 1);
  CHECK(crossed->seen[0].agent == AgentId(5));
  CHECK(crossed->seen[0].next_line == 77);
}

TEST_CASE("a role, a run and a node arrive whatever bytes are in their names") {
  LogBatch batch;
  batch.host = batch.role = "r\xff";
  pb::LogBatch batch_there;
  CHECK(batch_there.ParseFromString(ToWire(batch).SerializeAsString()));
  CHECK(batch_there.role() == "r?");
  LogRequest request;
  request.job_id = "run\xff";
  request.hosts = {"node\xff"};
  pb::WatchLogsRequest there;
  CHECK(there.ParseFromString(ToWire(request).SerializeAsString()));
  CHECK(there.job_id() == "run?");
}

TEST_CASE("a request with too many ranks is refused") {
  LogRequest request;
  for (int rank = 0; rank <= kMostFilterEntries; ++rank) request.filter.ranks.insert(rank);
  CHECK_STATUS(FromWire(ToWire(request)), absl::StatusCode::kInvalidArgument, "1025 ranks");
}

TEST_CASE("the daemon's wish crosses the wire in a DaemonEvent") {
  LogsWanted wanted;
  wanted.watch_id = WatchId(3);
  wanted.filter.without_stderr = true;
  wanted.tail = 100;
  wanted.follow = true;
  wanted.next_line = 41;
  const auto crossed = FromWire(ToWire(Incarnation(1), DaemonEvent{Epoch(2), wanted}));
  REQUIRE_OK(crossed);
  const LogsWanted& there = std::get<LogsWanted>(crossed->body);
  CHECK(there.watch_id == WatchId(3));
  CHECK(there.filter.without_stderr);
  CHECK(there.tail == 100);
  CHECK(there.follow);
  CHECK(there.next_line == 41);
}

}  // namespace
}  // namespace convene::rendezvous

// The hub with made-up ends; and the daemon behind it.
#include "rendezvous/logs/log_hub.h"

#include <catch2/catch.hpp>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "rendezvous/attend/daemon.h"
#include "rendezvous/quorum/messages.h"
#include "tools/base/clock.h"
#include "tools/base/testing/status_testing.h"

namespace convene::rendezvous {
namespace {

class FakeAgents final : public LogAgents {
 public:
  absl::StatusOr<LogStart> WatchLogs(WatchId watch, const LogRequest& request) override {
    if (request.job_id != "run") return absl::NotFoundError("no such run");
    watches.push_back(watch);
    return LogStart{{{AgentId(1), "node1", true}}};
  }
  void UnwatchLogs(WatchId watch) override { unwatched.push_back(watch); }

  std::vector<WatchId> watches;
  std::vector<WatchId> unwatched;
};

struct FakeViewer final : LogHub::Viewer {
  void Wake() override { ++wakes; }
  int wakes = 0;
};

struct FakePublisher final : LogHub::Publisher {
  void Resume() override { ++resumes; }
  void End() override { ++ends; }
  int resumes = 0;
  int ends = 0;
};

LogRequest RequestOf(const std::string& job_id = "run") {
  LogRequest request;
  request.job_id = job_id;
  request.tail = 100;
  request.follow = true;
  return request;
}

pb::LogBatch BatchOf(WatchId watch, uint64_t agent, size_t bytes = 10) {
  pb::LogBatch batch;
  batch.set_watch_id(watch.value());
  batch.set_agent_id(agent);
  batch.add_lines()->set_text(std::string(bytes, 'x'));
  return batch;
}

pb::LogNews TakeNews(LogHub& hub, WatchId watch) {
  LogHub::Taken taken = hub.Take(watch);
  REQUIRE(std::holds_alternative<pb::LogNews>(taken));
  return std::get<pb::LogNews>(std::move(taken));
}

bool SaysNothing(LogHub& hub, WatchId watch) {
  return std::holds_alternative<LogHub::Nothing>(hub.Take(watch));
}

absl::Status TakeEnd(LogHub& hub, WatchId watch) {
  LogHub::Taken taken = hub.Take(watch);
  REQUIRE(std::holds_alternative<absl::Status>(taken));
  return std::get<absl::Status>(std::move(taken));
}

// One viewer that has taken the start and been told Nothing.
struct OneViewer {
  OneViewer() {
    const auto opened = hub.Open(viewer, RequestOf());
    REQUIRE_OK(opened);
    watch = *opened;
    REQUIRE(TakeNews(hub, watch).has_start());
    REQUIRE(SaysNothing(hub, watch));
  }

  FakeAgents agents;
  LogHub hub{&agents};
  std::shared_ptr<FakeViewer> viewer = std::make_shared<FakeViewer>();
  WatchId watch;
};

TEST_CASE("a viewer hears whom the daemon asked, then what they publish, and is woken for it") {
  OneViewer one;
  auto publisher = std::make_shared<FakePublisher>();
  CHECK(one.hub.Publish(publisher, BatchOf(one.watch, 1)) == LogHub::Answer::kReadOn);
  CHECK(one.hub.Publish(publisher, BatchOf(one.watch, 1)) == LogHub::Answer::kReadOn);
  CHECK(one.viewer->wakes == 1);
  CHECK(TakeNews(one.hub, one.watch).batch().lines_size() == 1);
  CHECK(TakeNews(one.hub, one.watch).has_batch());
  CHECK(SaysNothing(one.hub, one.watch));
  one.hub.Leave(one.watch, AgentId(1), publisher);
  CHECK(one.viewer->wakes == 2);
  CHECK(TakeNews(one.hub, one.watch).gone().agent_id() == 1);
}

TEST_CASE("while a viewer does not read, little is kept and its publishers wait") {
  OneViewer one;
  std::vector<std::shared_ptr<FakePublisher>> publishers;
  size_t waiting = 0;
  for (uint64_t i = 0; i < 100; ++i) {
    publishers.push_back(std::make_shared<FakePublisher>());
    // Each publisher reads on only as long as it may, and so brings at most one batch too many.
    while (one.hub.Publish(publishers.back(), BatchOf(one.watch, i, 32 * 1024)) ==
           LogHub::Answer::kReadOn) {
    }
    ++waiting;
  }
  CHECK(waiting == 100);
  const auto resumed = [&] {
    size_t count = 0;
    for (const auto& publisher : publishers) count += publisher->resumes;
    return count;
  };
  // 107 batches: 8 of the first, one of each other.
  for (int i = 0; i < 99; ++i) TakeNews(one.hub, one.watch);
  CHECK(resumed() == 0);
  for (int i = 0; i < 7; ++i) TakeNews(one.hub, one.watch);
  CHECK(resumed() > 0);
  CHECK(resumed() < 50);
  // If these publishers have no lines, the others must not wait for them.
  TakeNews(one.hub, one.watch);
  REQUIRE(SaysNothing(one.hub, one.watch));
  for (const auto& publisher : publishers) CHECK(publisher->resumes == 1);
}

TEST_CASE("those that wait for room go on in the order of their coming") {
  OneViewer one;
  auto first = std::make_shared<FakePublisher>();
  auto second = std::make_shared<FakePublisher>();
  while (one.hub.Publish(first, BatchOf(one.watch, 1, 100 * 1024)) == LogHub::Answer::kReadOn) {
  }
  CHECK(one.hub.Publish(second, BatchOf(one.watch, 2, 100 * 1024)) == LogHub::Answer::kWait);
  TakeNews(one.hub, one.watch);
  CHECK(first->resumes + second->resumes == 0);
  TakeNews(one.hub, one.watch);
  CHECK(first->resumes == 1);
  CHECK(second->resumes == 1);
}

TEST_CASE("when a viewer is gone its publishers end, and the daemon asks nobody any more") {
  OneViewer one;
  auto publisher = std::make_shared<FakePublisher>();
  one.hub.Publish(publisher, BatchOf(one.watch, 1));
  one.hub.Close(one.watch);
  CHECK(publisher->ends == 1);
  CHECK(one.agents.unwatched == std::vector<WatchId>{one.watch});
  CHECK(TakeEnd(one.hub, one.watch).code() == absl::StatusCode::kCancelled);
  CHECK(one.hub.Publish(publisher, BatchOf(one.watch, 1)) == LogHub::Answer::kEnd);
  one.hub.Leave(one.watch, AgentId(1), publisher);
}

TEST_CASE("a viewer that waits is woken to hear that its watch was closed") {
  OneViewer one;
  one.hub.Close(one.watch);
  CHECK(one.viewer->wakes == 1);
}

TEST_CASE("two viewers of a run each get their own") {
  OneViewer one;
  auto viewer = std::make_shared<FakeViewer>();
  const auto other = one.hub.Open(viewer, RequestOf());
  REQUIRE_OK(other);
  CHECK(*other != one.watch);
  TakeNews(one.hub, *other);
  one.hub.Publish(std::make_shared<FakePublisher>(), BatchOf(*other, 1));
  CHECK(TakeNews(one.hub, *other).has_batch());
  CHECK(one.viewer->wakes == 0);
}

TEST_CASE("an unknown run is refused, and leaves nothing behind") {
  FakeAgents agents;
  LogHub hub(&agents);
  for (size_t i = 0; i < LogHub::kMostViewers + 1; ++i) {
    CHECK_STATUS(hub.Open(std::make_shared<FakeViewer>(), RequestOf("other")),
                 absl::StatusCode::kNotFound, "no such run");
  }
}

TEST_CASE("a run has so many viewers and no more") {
  FakeAgents agents;
  LogHub hub(&agents);
  for (size_t i = 0; i < LogHub::kMostViewersPerRun; ++i) {
    REQUIRE_OK(hub.Open(std::make_shared<FakeViewer>(), RequestOf()));
  }
  CHECK_STATUS(hub.Open(std::make_shared<FakeViewer>(), RequestOf()),
               absl::StatusCode::kResourceExhausted, "8 viewers look at the run run");
  hub.Close(agents.watches[0]);
  CHECK_OK(hub.Open(std::make_shared<FakeViewer>(), RequestOf()));
}

TEST_CASE("a daemon that stops ends a watch with Unavailable, after what it had") {
  OneViewer one;
  auto publisher = std::make_shared<FakePublisher>();
  one.hub.Publish(publisher, BatchOf(one.watch, 1));
  one.hub.Shutdown();
  CHECK(publisher->ends == 1);
  CHECK(TakeNews(one.hub, one.watch).has_batch());
  CHECK(TakeEnd(one.hub, one.watch).code() == absl::StatusCode::kUnavailable);
  CHECK_STATUS(one.hub.Open(one.viewer, RequestOf()), absl::StatusCode::kUnavailable, "stopping");
}

TEST_CASE("a daemon that stops with its run lets the agents say their last lines") {
  OneViewer one;
  auto publisher = std::make_shared<FakePublisher>();
  one.hub.Publish(publisher, BatchOf(one.watch, 1));
  one.hub.EndRun(one.watch, {"succeeded", "all nodes did"});
  one.hub.Shutdown();
  CHECK(publisher->ends == 0);
  TakeNews(one.hub, one.watch);
  CHECK(TakeNews(one.hub, one.watch).ended().phase() == "succeeded");
  REQUIRE(SaysNothing(one.hub, one.watch));
  one.hub.Publish(publisher, BatchOf(one.watch, 1));
  CHECK(TakeNews(one.hub, one.watch).has_batch());
  one.hub.Leave(one.watch, AgentId(1), publisher);
  CHECK(TakeNews(one.hub, one.watch).has_gone());
  CHECK(TakeEnd(one.hub, one.watch).ok());
}

// --- The daemon: the agents that it asks.

struct Sink final : StreamSink {
  void Queue(Item item) override { items.push_back(std::move(item)); }
  void Flush() override {}

  std::vector<LogsWanted> Wanted() const {
    std::vector<LogsWanted> wanted;
    for (const Item& item : items) {
      const auto* event = std::get_if<DaemonEvent>(&item);
      if (event == nullptr) continue;
      if (const auto* one = std::get_if<LogsWanted>(&event->body)) wanted.push_back(*one);
    }
    return wanted;
  }

  std::vector<Item> items;
};

struct OneDaemon {
  ~OneDaemon() { daemon.Shutdown(); }

  std::shared_ptr<Sink> Join(const std::string& host, uint64_t incarnation, bool publishes = true) {
    auto sink = std::make_shared<Sink>();
    last = daemon.Open(sink);
    Hello hello;
    hello.job_id = "run";
    hello.host = host;
    hello.nodes_min = 1;
    hello.nodes_max = 4;
    hello.lease = absl::Seconds(60);
    hello.publishes_logs = publishes;
    hello.log_directory = absl::StrCat("/logs/", host);
    daemon.Join(last, Incarnation(incarnation), hello);
    return sink;
  }

  Daemon daemon{&Clock::Real(), /*quiet=*/true};
  MemberId last;
};

TEST_CASE("the agents of a run are asked, also one that joins later; an older one is named") {
  OneDaemon one;
  const auto first = one.Join("node1", 1);
  const auto old = one.Join("node2", 2, /*publishes=*/false);
  LogRequest request = RequestOf();
  request.seen = {{AgentIdOf(Incarnation(9)), 7}, {AgentIdOf(Incarnation(1)), 55}};
  const auto start = one.daemon.WatchLogs(WatchId(7), request);
  REQUIRE_OK(start);
  CHECK(start->nodes.size() == 2);
  REQUIRE(first->Wanted().size() == 1);
  CHECK(first->Wanted()[0].watch_id == WatchId(7));
  CHECK(first->Wanted()[0].tail == 100);
  CHECK(first->Wanted()[0].next_line == 55);
  CHECK(old->Wanted().empty());
  const auto late = one.Join("node3", 3);
  REQUIRE(late->Wanted().size() == 1);
  CHECK(late->Wanted()[0].next_line == 0);
  one.daemon.UnwatchLogs(WatchId(7));
  CHECK(one.Join("node4", 4)->Wanted().empty());
}

TEST_CASE("only the nodes that were named are asked, and a name that is not there is an error") {
  OneDaemon one;
  const auto first = one.Join("node1", 1);
  const auto second = one.Join("node2", 2);
  LogRequest request = RequestOf();
  request.hosts = {"node2"};
  REQUIRE_OK(one.daemon.WatchLogs(WatchId(7), request));
  CHECK(first->Wanted().empty());
  CHECK(second->Wanted().size() == 1);
  request.hosts = {"node9"};
  CHECK_STATUS(one.daemon.WatchLogs(WatchId(8), request), absl::StatusCode::kNotFound,
               "no node node9; it has node1, node2");
}

TEST_CASE("who asks for an unknown run is told the known ones") {
  OneDaemon one;
  CHECK_STATUS(one.daemon.WatchLogs(WatchId(1), RequestOf("other")), absl::StatusCode::kNotFound,
               "knows no run other, nor any other");
  one.Join("node1", 1);
  CHECK_STATUS(one.daemon.WatchLogs(WatchId(1), RequestOf("other")), absl::StatusCode::kNotFound,
               "knows no run other; it has run");
}

TEST_CASE("a watch hears the end of its run; who comes later is told where the files are") {
  OneDaemon one;
  std::vector<RunEnded> ends;
  one.daemon.set_on_run_ended([&](WatchId watch, const RunEnded& ended) {
    CHECK(watch == WatchId(7));
    ends.push_back(ended);
  });
  Hello alone;
  alone.job_id = "run";
  alone.host = "node1";
  alone.log_directory = "/logs/run_1";
  alone.lease = absl::Seconds(60);
  auto sink = std::make_shared<Sink>();
  const MemberId id = one.daemon.Open(sink);
  one.daemon.Join(id, Incarnation(1), alone);
  REQUIRE_OK(one.daemon.WatchLogs(WatchId(7), RequestOf()));
  one.daemon.Receive(id, Incarnation(1), Epoch(), Ready{"node1", 1});
  CHECK(ends.empty());
  one.daemon.Receive(id, Incarnation(1), Epoch(1), WorkersSucceeded{});
  REQUIRE(ends.size() == 1);
  CHECK(ends[0].phase == "succeeded");
  CHECK_STATUS(one.daemon.WatchLogs(WatchId(8), RequestOf()), absl::StatusCode::kFailedPrecondition,
               "node1:/logs/run_1");
}

}  // namespace
}  // namespace convene::rendezvous

// The daemon, the log hub and the HTTP server as gRPC's threads use them: everything at once.
// ThreadSanitizer looks for races (tools/check tsan), and every caller must get an answer.

#include <fcntl.h>
#include <sys/socket.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <latch>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "rendezvous/attend/daemon.h"
#include "rendezvous/journal/file_journal.h"
#include "rendezvous/logs/log_hub.h"
#include "rendezvous/quorum/agent_id.h"
#include "rendezvous/quorum/messages.h"
#include "rendezvous/web/http_server.h"
#include "rendezvous/web/web.h"
#include "tools/base/clock.h"
#include "tools/base/mutex.h"
#include "tools/base/testing/status_testing.h"
#include "tools/base/testing/temp_dir.h"
#include "tools/base/thread.h"
#include "tools/base/unique_fd.h"

namespace convene::rendezvous {
namespace {

constexpr int kViewers = 2;
constexpr int kAgents = 4;
constexpr int kJoinsPerAgent = 30;
constexpr int kWatches = 40;
constexpr int kRequests = 60;
constexpr absl::Duration kPatience = absl::Seconds(60);

// A bell that rings at most once before it is heard.
class Bell {
 public:
  void Ring() {
    MutexLock lock(&mutex_);
    has_rung_ = true;
    changed_.SignalAll();
  }
  // Returns false when it did not ring in time.
  bool Hear() {
    MutexLock lock(&mutex_);
    const MonotonicTime deadline = Clock::Real().Now() + kPatience;
    while (!has_rung_) {
      const absl::Duration left = deadline - Clock::Real().Now();
      if (left <= absl::ZeroDuration()) return false;
      changed_.WaitFor(&mutex_, left);
    }
    has_rung_ = false;
    return true;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  bool has_rung_ ABSL_GUARDED_BY(mutex_) = false;
};

struct WaitingViewer final : LogHub::Viewer {
  void Wake() override { bell.Ring(); }
  Bell bell;
};

struct WaitingPublisher final : LogHub::Publisher {
  void Resume() override { bell.Ring(); }
  void End() override { bell.Ring(); }
  Bell bell;
};

// An agent's stream: requests to publish wait here for the agent's thread.
class AgentSink final : public StreamSink {
 public:
  void Queue(Item item) override {
    const auto* event = std::get_if<DaemonEvent>(&item);
    MutexLock lock(&mutex_);
    if (event == nullptr) return;
    const auto* wanted = std::get_if<LogsWanted>(&event->body);
    if (wanted == nullptr) return;
    wanted_.push_back(*wanted);
    bell.Ring();
  }
  void Flush() override {}

  std::vector<LogsWanted> TakeWanted() {
    MutexLock lock(&mutex_);
    return std::exchange(wanted_, {});
  }

  Bell bell;  // something is wanted

 private:
  Mutex mutex_;
  std::vector<LogsWanted> wanted_ ABSL_GUARDED_BY(mutex_);
};

class Crowd {
 public:
  Crowd() {
    auto memory = FileJournal::Open({directory_.path()});
    REQUIRE(memory.ok());
    daemon_ = std::make_unique<Daemon>(&Clock::Real(), /*quiet=*/true, *std::move(memory));
    REQUIRE(daemon_->Start().ok());
    hub_ = std::make_unique<LogHub>(daemon_.get());
    daemon_->set_on_run_ended(
        [this](WatchId watch, const RunEnded& ended) { hub_->EndRun(watch, ended); });
    web_ = std::make_unique<Web>(
        daemon_.get(), hub_.get(), [] { return StoreServer::Counts(); },
        [] { return absl::InfiniteFuture(); });
    auto http = HttpServer::Start({}, [this](const HttpRequest& r) { return web_->Respond(r); });
    REQUIRE(http.ok());
    http_ = *std::move(http);
    Join("keeper", kKeeper, keeper_);
  }

  // Stays from the beginning, so that there is a run to look at, and publishes lines on request.
  void BeKeeper() {
    while (!agents_are_done_) {
      if (!keeper_->bell.Hear()) unheard_.fetch_add(1);
      for (const LogsWanted& wanted : keeper_->TakeWanted()) PublishTo(wanted.watch_id, kKeeper);
    }
  }

  // Joins a few times, publishes lines on request, and goes without a word.
  void BeAgent(int number) {
    for (int turn = 0; turn < kJoinsPerAgent; ++turn) {
      const Incarnation incarnation(static_cast<uint64_t>(1 + number * kJoinsPerAgent + turn));
      auto sink = std::make_shared<AgentSink>();
      const MemberId id = Join(absl::StrCat("node", number), incarnation, sink);
      for (const LogsWanted& wanted : sink->TakeWanted()) PublishTo(wanted.watch_id, incarnation);
      daemon_->Disconnect(id);
    }
  }

  // Opens, reads until a batch has come or the run's agents are done, and closes, again and again.
  void BeViewer() {
    LogRequest request;
    request.job_id = "run";
    request.tail = 10;
    request.follow = true;
    for (int turn = 0; turn < kWatches; ++turn) {
      auto viewer = std::make_shared<WaitingViewer>();
      const auto watch = hub_->Open(viewer, request);
      if (!watch.ok()) {  // the hub stops
        if (turn == 0) have_watched_.count_down();
        break;
      }
      for (int taken = 0; taken < 20; ++taken) {
        const LogHub::Taken news = hub_->Take(*watch);
        if (std::holds_alternative<absl::Status>(news)) break;
        if (!std::holds_alternative<LogHub::Nothing>(news)) continue;
        if (agents_are_done_ || turn % 2 == 0) break;
        if (!viewer->bell.Hear()) unheard_.fetch_add(1);
      }
      hub_->Close(*watch);
      watches_.fetch_add(1);
      if (turn == 0) have_watched_.count_down();
    }
  }

  void BeBrowser() {
    for (int turn = 0; turn < kRequests; ++turn) {
      // Pages are kept for a while: these two ask the daemon each time.
      if (daemon_->Views("run").ok() && daemon_->Counters().joins > 0) answers_.fetch_add(1);
      int ends[2];
      if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return;
      const UniqueFd client(ends[0]);
      const timeval patience = {60, 0};
      setsockopt(client.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
      fcntl(ends[1], F_SETFL, O_NONBLOCK);
      http_->Adopt(UniqueFd(ends[1]));
      const std::string path = turn % 3 == 0 ? "/metrics" : turn % 3 == 1 ? "/status" : "/";
      const std::string request = absl::StrCat("GET ", path, " HTTP/1.1\r\nHost: x\r\n\r\n");
      send(client.get(), request.data(), request.size(), MSG_NOSIGNAL);
      char bytes[256];
      const ssize_t count = recv(client.get(), bytes, sizeof(bytes), 0);
      if (count > 0 && absl::StartsWith(std::string(bytes, count), "HTTP/1.1 200")) {
        pages_.fetch_add(1);
      }
    }
  }

  void EndAgents() {
    have_watched_.wait();  // on a busy machine the agents may be quicker than the viewers
    agents_are_done_ = true;
    keeper_->bell.Ring();
    hub_->Shutdown();  // wakes every viewer that waits
  }

  // Shuts down in the order of server.cc.
  void Shutdown() {
    web_->MarkStopping();
    http_.reset();
    daemon_->Shutdown();
  }

  std::atomic<int> watches_ = 0, pages_ = 0, answers_ = 0, unheard_ = 0;
  std::unique_ptr<Daemon> daemon_;

 private:
  static constexpr Incarnation kKeeper{1'000'000};

  MemberId Join(const std::string& host, Incarnation incarnation, std::shared_ptr<AgentSink> sink) {
    const MemberId id = daemon_->Open(std::move(sink));
    Hello hello;
    hello.job_id = "run";
    hello.host = host;
    hello.nodes_min = 1;
    hello.nodes_max = 1 + kAgents;
    hello.max_restarts = 1'000'000;
    hello.lease = absl::Seconds(60);
    hello.publishes_logs = true;
    daemon_->Join(id, incarnation, hello);
    daemon_->Receive(id, incarnation, Epoch(), Ready{host, 1});
    daemon_->Receive(id, incarnation, Epoch(), Heartbeat());
    return id;
  }

  void PublishTo(WatchId watch, Incarnation incarnation) {
    auto publisher = std::make_shared<WaitingPublisher>();
    for (int turn = 0; turn < 8; ++turn) {
      pb::LogBatch batch;
      batch.set_watch_id(watch.value());
      batch.set_agent_id(AgentIdOf(incarnation).value());
      batch.add_lines()->set_text(std::string(64 * 1024, 'x'));
      const LogHub::Answer answer = hub_->Publish(publisher, std::move(batch));
      if (answer == LogHub::Answer::kEnd) break;
      if (answer == LogHub::Answer::kWait && !publisher->bell.Hear()) unheard_.fetch_add(1);
    }
    hub_->Leave(watch, AgentIdOf(incarnation), publisher);
  }

  testing::TempDir directory_;
  std::unique_ptr<LogHub> hub_;
  std::unique_ptr<Web> web_;
  std::unique_ptr<HttpServer> http_;
  const std::shared_ptr<AgentSink> keeper_ = std::make_shared<AgentSink>();
  std::atomic<bool> agents_are_done_ = false;
  std::latch have_watched_{kViewers};
};

TEST_CASE("agents, viewers and browsers all at once get their answers, and the end comes") {
  Crowd crowd;
  std::vector<Thread> agents;
  std::vector<Thread> others;
  for (int i = 0; i < kAgents; ++i) {
    agents.emplace_back(absl::StrCat("agent", i), [&crowd, i] { crowd.BeAgent(i); });
  }
  for (int i = 0; i < kViewers; ++i) {
    others.emplace_back(absl::StrCat("viewer", i), [&crowd] { crowd.BeViewer(); });
  }
  others.emplace_back("keeper", [&crowd] { crowd.BeKeeper(); });
  others.emplace_back("browser", [&crowd] { crowd.BeBrowser(); });
  for (Thread& agent : agents) agent.Join();
  crowd.EndAgents();
  for (Thread& other : others) other.Join();
  crowd.Shutdown();
  CHECK(crowd.pages_ == kRequests);
  CHECK(crowd.answers_ == kRequests);
  CHECK(crowd.unheard_ == 0);
  CHECK(crowd.watches_ > 0);
  const DaemonCounters counters = crowd.daemon_->Counters();
  CHECK(counters.joins + counters.joins_refused == 1 + kAgents * kJoinsPerAgent);
  CHECK(counters.joins > 0);
  CHECK(counters.streams_open == 0);
}

}  // namespace
}  // namespace convene::rendezvous

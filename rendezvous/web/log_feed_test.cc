#include "rendezvous/web/log_feed.h"

#include <catch2/catch.hpp>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tools/base/testing/manual_clock.h"
#include "tools/base/testing/status_testing.h"

namespace convene::rendezvous {
namespace {

class FakeAgents final : public LogAgents {
 public:
  absl::StatusOr<LogStart> WatchLogs(WatchId watch, const LogRequest& request) override {
    if (request.job_id != "run") return absl::NotFoundError("no such run");
    if (is_over) return absl::FailedPreconditionError("the run is over");
    watches.push_back(watch);
    requests.push_back(request);
    return LogStart{{{AgentId(1), "node1", true}}};
  }
  void UnwatchLogs(WatchId watch) override { unwatched.push_back(watch); }

  std::vector<WatchId> watches, unwatched;
  std::vector<LogRequest> requests;
  bool is_over = false;
};

struct FakePublisher final : LogHub::Publisher {
  void Resume() override { ++resumes; }
  void End() override { ++ends; }
  int resumes = 0;
  int ends = 0;
};

class FeedTest {
 public:
  LogHub::Answer Publish(int lines, const std::string& text = "", size_t watch = 0) {
    pb::LogBatch batch;
    batch.set_watch_id(agents_.watches.at(watch).value());
    batch.set_host("node1");
    for (int i = 0; i < lines; ++i) {
      batch.add_lines()->set_text(text.empty() ? absl::StrCat("line ", ++published_) : text);
    }
    return hub_.Publish(publisher_, std::move(batch));
  }
  FeedAnswer Read(int64_t feed = 0, int64_t after = 0, int rank = -1) {
    auto answer = feeds_.Read({.run = "run", .rank = rank, .feed = feed, .after = after});
    REQUIRE_OK(answer);
    return *std::move(answer);
  }

  ManualClock clock_;
  FakeAgents agents_;
  LogHub hub_{&agents_};
  LogFeeds feeds_{&hub_, &clock_};
  std::shared_ptr<FakePublisher> publisher_ = std::make_shared<FakePublisher>();
  int published_ = 0;
};

TEST_CASE_METHOD(FeedTest, "each page reads every line once, from its own mark") {
  FeedAnswer first = Read();
  CHECK(first.lines.empty());
  Publish(3);
  FeedAnswer second = Read(first.feed, first.next);
  REQUIRE(second.lines.size() == 3);
  CHECK(second.lines[0].text == "line 1");
  CHECK(second.lines[0].host == "node1");
  Publish(1);
  CHECK(Read(second.feed, second.next).lines.at(0).text == "line 4");
  CHECK(Read().lines.size() == 4);  // another page
  CHECK(agents_.watches.size() == 1);
  CHECK(Read(second.feed, 4).lines.empty());
}

TEST_CASE_METHOD(FeedTest, "a long answer comes in parts, and old lines are counted as skipped") {
  const int64_t feed = Read().feed;
  for (int i = 0; i < 7; ++i) {
    Publish(1000);
    Read(feed, 1);  // some page reads on
  }
  FeedAnswer answer = Read(feed, 1);
  CHECK(answer.skipped == 1999);
  CHECK(answer.lines.at(0).text == "line 2001");
  CHECK(answer.lines.size() == LogFeed::kMostAnswerLines);
  CHECK(answer.has_more);
  int64_t lines = static_cast<int64_t>(answer.lines.size());
  while (answer.has_more) {
    answer = Read(feed, answer.next);
    lines += static_cast<int64_t>(answer.lines.size());
  }
  CHECK(lines == static_cast<int64_t>(LogFeed::kMostLines));
  CHECK(answer.lines.back().text == "line 7000");
}

TEST_CASE_METHOD(FeedTest, "a mark of another daemon's feed means nothing") {
  const int64_t feed = Read().feed;
  Publish(2);
  CHECK(Read(feed + 1, 2).lines.size() == 2);
  CHECK(Read(feed, 1000).lines.empty());
  CHECK(Read(feed, -5).lines.size() == 2);
}

TEST_CASE_METHOD(FeedTest, "while no page reads, agents are not read either, and go on later") {
  const int64_t feed = Read().feed;
  const std::string text(900, 'x');
  LogHub::Answer answer = LogHub::Answer::kReadOn;
  int batches = 0;
  for (; batches < 1000 && answer == LogHub::Answer::kReadOn; ++batches) answer = Publish(20, text);
  CHECK(answer == LogHub::Answer::kWait);
  CHECK(batches * 20 * 900 < 3 << 20);
  CHECK(publisher_->resumes == 0);
  Read(feed, 1);
  CHECK(publisher_->resumes == 1);
  CHECK(Publish(1) == LogHub::Answer::kReadOn);
}

TEST_CASE_METHOD(FeedTest, "a feed that nobody reads ends, and the next reader begins anew") {
  const int64_t feed = Read().feed;
  clock_.Advance(LogFeeds::kUnread / 2);
  feeds_.CloseUnread();
  CHECK(agents_.unwatched.empty());
  Read(feed);
  clock_.Advance(LogFeeds::kUnread);
  feeds_.CloseUnread();
  CHECK(agents_.unwatched == agents_.watches);
  CHECK(Read(feed).feed != feed);
  CHECK(agents_.watches.size() == 2);
}

TEST_CASE_METHOD(FeedTest, "a rank has a feed of its own, and their number is bounded") {
  Read(0, 0, 5);
  CHECK(agents_.requests.at(0).filter.ranks == std::set<int>{5});
  CHECK(agents_.requests.at(0).follow);
  // The hub allows 8 viewers a run.
  for (int rank = 6; rank < 13; ++rank) Read(0, 0, rank);
  const auto refused = feeds_.Read({.run = "run", .rank = 99});
  CHECK(absl::IsResourceExhausted(refused.status()));
  CHECK(absl::IsNotFound(feeds_.Read({.run = "other"}).status()));
}

TEST_CASE_METHOD(FeedTest, "a page that comes after a run's end sees the next run of the name") {
  const int64_t feed = Read().feed;
  Publish(2);
  hub_.EndRun(agents_.watches[0], {"failed", "rank 3 failed"});
  // A page that was there reads to the end.
  CHECK(Read(feed).lines.size() == 2);
  CHECK_FALSE(Read(feed).over.empty());
  agents_.is_over = true;
  CHECK(Read().feed == feed);  // nothing followed yet
  agents_.is_over = false;
  const FeedAnswer next = Read();
  CHECK(next.feed != feed);
  CHECK(next.over.empty());
  CHECK(next.lines.empty());
  CHECK(agents_.watches.size() == 2);
  CHECK(agents_.unwatched == std::vector<WatchId>{agents_.watches[0]});
}

TEST_CASE_METHOD(FeedTest, "the end of the run and of the daemon are told in words") {
  const int64_t feed = Read().feed;
  hub_.EndRun(agents_.watches[0], {"failed", "rank 3 failed"});
  Publish(1);
  CHECK(Read(feed).over == "the run is over: failed: rank 3 failed");
  CHECK(Read(feed).lines.size() == 1);
  Read(0, 0, 1);
  hub_.Shutdown();
  CHECK_THAT(Read(0, 0, 1).over, Catch::Contains("stopping"));
}

}  // namespace
}  // namespace convene::rendezvous

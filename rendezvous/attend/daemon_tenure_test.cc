// The daemon whose memory others share: it fails closed.
#include <atomic>
#include <catch2/catch.hpp>
#include <memory>
#include <string>
#include <utility>

#include "rendezvous/attend/daemon.h"
#include "rendezvous/attend/testing/inbox.h"
#include "rendezvous/journal/journal.h"
#include "rendezvous/journal/tenure.h"
#include "rendezvous/quorum/messages.h"
#include "tools/base/clock.h"
#include "tools/base/testing/manual_clock.h"
#include "tools/base/testing/poll.h"
#include "tools/base/testing/status_testing.h"

namespace convene::rendezvous {
namespace {

// A store that others can make refuse.
struct Store {
  std::atomic<bool> refuses = false;
  std::atomic<int> tries = 0;
  std::atomic<bool> is_lost = false;  // to another daemon
  std::atomic<bool> refuses_reports = false;
  std::atomic<int> report_tries = 0;
  std::atomic<int> reports = 0;
  std::atomic<int> forgets = 0;
  std::atomic<bool> loses_reports = false;
  std::atomic<int64_t> last_number = 0;  // of a report
};

class FakeShelf final : public IncidentShelf {
 public:
  explicit FakeShelf(Store* store) : store_(store) {}
  absl::Status Write(const std::string&, const IncidentView& incident) override {
    store_->last_number = incident.number;
    ++store_->report_tries;
    if (store_->refuses_reports) return absl::UnavailableError("no quorum");
    ++store_->reports;
    return absl::OkStatus();
  }
  absl::StatusOr<std::vector<IncidentView>> Read(const std::string&) override {
    if (store_->loses_reports) return absl::DeadlineExceededError("no answer in time");
    return std::vector<IncidentView>();
  }
  absl::Status Forget(const std::string&) override {
    if (store_->refuses) return absl::UnavailableError("no quorum");
    ++store_->forgets;
    return absl::OkStatus();
  }

 private:
  Store* const store_;
};

class FakeJournal final : public Journal {
 public:
  explicit FakeJournal(Store* store, std::shared_ptr<Tenure> tenure = nullptr)
      : store_(store), tenure_(std::move(tenure)), shelf_(store) {}
  absl::Status Append(const RecordChanges&) override {
    ++store_->tries;
    is_current_ = !store_->refuses;
    return is_current_ ? absl::OkStatus() : absl::UnavailableError("no quorum");
  }
  bool is_current() const override { return is_current_; }
  absl::Status Look() override {
    if (!store_->is_lost) return absl::OkStatus();
    tenure_->End();
    return absl::AbortedError("another daemon leads");
  }
  IncidentShelf* incidents() override { return &shelf_; }

 private:
  Store* const store_;
  const std::shared_ptr<Tenure> tenure_;
  FakeShelf shelf_;
  bool is_current_ = true;
};

Hello HelloOf(int agent, const std::string& job) {
  Hello hello;
  hello.job_id = job;
  hello.host = "node" + std::to_string(agent);
  hello.nodes_min = hello.nodes_max = 1;
  hello.max_restarts = 3;
  hello.lease = absl::Seconds(60);
  return hello;
}

struct Fixture {
  explicit Fixture(Clock* clock)
      : tenure(std::make_shared<Tenure>(9, clock->Now() + absl::Seconds(60))) {
    Journal::Opened memory;
    memory.journal = std::make_unique<FakeJournal>(&store, tenure);
    memory.tenure = tenure;
    daemon = std::make_unique<Daemon>(clock, /*quiet=*/true, std::move(memory));
    REQUIRE(daemon->Start().ok());
    a = daemon->Open(inbox.SinkOf(0));
    daemon->Join(a, Incarnation(1), HelloOf(0, "job"));
  }
  ~Fixture() { Stop(); }
  void Stop() {
    if (!std::exchange(is_stopped, true)) daemon->Shutdown();
  }

  Store store;
  std::shared_ptr<Tenure> tenure;
  Inbox inbox;
  std::unique_ptr<Daemon> daemon;
  MemberId a;
  bool is_stopped = false;
};

TEST_CASE("incidents whose reports could not be read keep their numbers") {
  for (const bool loses : {false, true}) {
    JobRecord record;
    record.founder = HelloOf(0, "job");
    record.floor = Epoch(2);
    record.epoch = record.highest_epoch = Epoch(6);
    Store store;
    store.loses_reports = loses;
    Journal::Opened memory;
    memory.journal = std::make_unique<FakeJournal>(&store);
    memory.jobs.push_back(record);
    Daemon daemon(&Clock::Real(), /*quiet=*/true, std::move(memory));
    REQUIRE_OK(daemon.Start());
    Inbox inbox;
    const MemberId a = daemon.Open(inbox.SinkOf(0));
    daemon.Join(a, Incarnation(1), HelloOf(0, "job"));
    inbox.Expect<Welcome>(0);
    daemon.Receive(a, Incarnation(1), Epoch(), Ready{"node0", 1});
    inbox.Expect<Assignment>(0);
    daemon.Receive(a, Incarnation(1), Epoch(7), WorkerFailure{.host = "node0", .signal = 9});
    REQUIRE(testing::PollUntil([&] { return store.last_number > 0; }, absl::Seconds(20)));
    // Four epochs of this job have begun, and each may have broken.
    CHECK(store.last_number == (loses ? 5 : 1));
    daemon.Shutdown();
  }
}

TEST_CASE("a Welcome tells the term") {
  Fixture the(&Clock::Real());
  const Welcome welcome = the.inbox.Expect<Welcome>(0);
  CHECK(welcome.term == 9);
  CHECK(welcome.survives_restart);
}

TEST_CASE("a decision that cannot be stored is held until it is") {
  Fixture the(&Clock::Real());
  the.inbox.Expect<Welcome>(0);
  the.store.refuses = true;
  the.daemon->Receive(the.a, Incarnation(1), Epoch(), Ready{"node0", 1});
  REQUIRE(testing::PollUntil([&] { return the.store.tries >= 3; }, absl::Seconds(20)));
  the.daemon->Receive(the.a, Incarnation(1), Epoch(), Heartbeat());
  the.inbox.Expect<Heard>(0);  // decides nothing
  CHECK(the.inbox.empty());
  the.store.refuses = false;
  the.inbox.Expect<Assignment>(0);
}

TEST_CASE("the report of an incident waits for the decision beside it, and is not lost meanwhile") {
  Fixture the(&Clock::Real());
  the.daemon->Receive(the.a, Incarnation(1), Epoch(), Ready{"node0", 1});
  the.inbox.Expect<Welcome>(0);
  the.inbox.Expect<Assignment>(0);
  the.store.refuses = true;
  const int tries = the.store.tries;
  the.daemon->Receive(the.a, Incarnation(1), Epoch(1), WorkerFailure{.host = "node0", .signal = 9});
  REQUIRE(testing::PollUntil([&] { return the.store.tries >= tries + 2; }, absl::Seconds(20)));
  CHECK(the.store.reports == 0);
  the.store.refuses = false;
  the.inbox.Expect<Stop>(0);
  CHECK(testing::PollUntil([&] { return the.store.reports == 1; }, absl::Seconds(20)));
}

TEST_CASE("reports that cannot be written wait for a later decision, and hold it up once") {
  Fixture the(&Clock::Real());
  const auto restart = [&](int epoch) {
    the.daemon->Receive(the.a, Incarnation(1), Epoch(epoch),
                        WorkerFailure{.host = "node0", .signal = 9});
    the.inbox.Expect<Stop>(0);
    the.daemon->Receive(the.a, Incarnation(1), Epoch(epoch), Ready{"node0", 1});
    the.inbox.Expect<Assignment>(0);
  };
  the.daemon->Receive(the.a, Incarnation(1), Epoch(), Ready{"node0", 1});
  the.inbox.Expect<Welcome>(0);
  the.inbox.Expect<Assignment>(0);
  the.store.refuses_reports = true;
  restart(1);
  REQUIRE(testing::PollUntil([&] { return the.store.report_tries >= 1; }, absl::Seconds(20)));
  const int tries = the.store.report_tries;
  const int decisions = the.store.tries;
  restart(2);
  // One behind each write of decisions, however many reports wait.
  CHECK(the.store.report_tries - tries <= the.store.tries - decisions + 1);
  CHECK(the.store.reports == 0);
  the.store.refuses_reports = false;
  restart(3);
  CHECK(testing::PollUntil([&] { return the.store.reports >= 3; }, absl::Seconds(20)));
}

TEST_CASE("the reports of a job that is over go before another run of its name has some") {
  Fixture the(&Clock::Real());
  the.daemon->Receive(the.a, Incarnation(1), Epoch(), Ready{"node0", 1});
  the.inbox.Expect<Welcome>(0);
  the.inbox.Expect<Assignment>(0);
  the.store.refuses = true;
  the.daemon->Receive(the.a, Incarnation(1), Epoch(1), WorkersSucceeded());
  const MemberId b = the.daemon->Open(the.inbox.SinkOf(1));
  the.daemon->Join(b, Incarnation(2), HelloOf(1, "job"));
  const int tries = the.store.tries;
  REQUIRE(testing::PollUntil([&] { return the.store.tries >= tries + 2; }, absl::Seconds(20)));
  CHECK(the.store.forgets == 0);
  the.store.refuses = false;
  CHECK(testing::PollUntil([&] { return the.store.forgets > 0; }, absl::Seconds(20)));
}

TEST_CASE("a daemon that is stopped holds back what was not stored") {
  Fixture the(&Clock::Real());
  the.inbox.Expect<Welcome>(0);
  the.store.refuses = true;
  the.daemon->Receive(the.a, Incarnation(1), Epoch(), Ready{"node0", 1});
  REQUIRE(testing::PollUntil([&] { return the.store.tries >= 1; }, absl::Seconds(20)));
  the.Stop();
  CHECK(std::holds_alternative<absl::Status>(the.inbox.Take()->item));
  CHECK(the.inbox.empty());
}

TEST_CASE("nothing leaves once the tenure may be over, and what came too late brings none back") {
  ManualClock clock;
  Fixture the(&clock);
  the.inbox.Expect<Welcome>(0);
  clock.Advance(absl::Seconds(59));
  CHECK_OK(the.daemon->Views("job"));
  the.daemon->Receive(the.a, Incarnation(1), Epoch(), Heartbeat());
  the.inbox.Expect<Heard>(0);
  clock.Advance(absl::Seconds(1));
  the.daemon->Receive(the.a, Incarnation(1), Epoch(), Heartbeat());
  CHECK(the.inbox.empty());
  CHECK_FALSE(the.tenure->Extend(clock.Now(), clock.Now() + absl::Seconds(60)));
  CHECK_STATUS(the.daemon->Views("job"), absl::StatusCode::kAborted, "leads no more");
  the.daemon->Receive(the.a, Incarnation(1), Epoch(), Heartbeat());
  the.daemon->Receive(the.a, Incarnation(1), Epoch(), Ready{"node0", 1});
  REQUIRE(testing::PollUntil([&] { return the.store.tries >= 1; }, absl::Seconds(20)));
  CHECK(the.inbox.empty());
}

TEST_CASE("a daemon that decides nothing looks whether it still leads") {
  Fixture the(&Clock::Real());
  the.inbox.Expect<Welcome>(0);
  the.daemon->Receive(the.a, Incarnation(1), Epoch(), Heartbeat());
  the.inbox.Expect<Heard>(0);
  the.store.is_lost = true;
  REQUIRE(testing::PollUntil([&] { return !the.tenure->Covers(Clock::Real().Now()); },
                             absl::Seconds(20)));
  the.daemon->Receive(the.a, Incarnation(1), Epoch(), Heartbeat());
  CHECK(the.inbox.empty());
  CHECK(the.store.tries == 0);
}

// Of the daemon below: how far its wall clock is off.
std::atomic<int64_t> g_hours_ahead = 0;

absl::Time SetWallNow() { return WallNow() + absl::Hours(g_hours_ahead.load()); }

TEST_CASE("an event has the time that the wall clock had then, and the clock may be set") {
  const auto is_near = [](absl::Time a, absl::Time b) {
    return absl::AbsDuration(a - b) < absl::Minutes(10);
  };
  g_hours_ahead = -3;  // A machine starts, and has not heard the time yet.
  Daemon daemon(&Clock::Real(), /*quiet=*/true, std::nullopt, &SetWallNow);
  REQUIRE_OK(daemon.Start());
  Inbox inbox;
  const MemberId a = daemon.Open(inbox.SinkOf(0));
  daemon.Join(a, Incarnation(1), HelloOf(0, "job"));
  g_hours_ahead = 0;
  daemon.Receive(a, Incarnation(1), Epoch(), Ready{"node0", 1});
  daemon.Receive(a, Incarnation(1), Epoch(1), WorkerFailure{.host = "node0", .signal = 9});
  const auto views = daemon.Views("job");
  daemon.Shutdown();
  REQUIRE_OK(views);
  const JobView& view = views->front();
  REQUIRE(view.events.size() >= 2);
  CHECK(is_near(view.events.front().time, WallNow() - absl::Hours(3)));
  CHECK(is_near(view.events.back().time, WallNow()));
  REQUIRE(view.incidents.size() == 1);
  CHECK(is_near(view.incidents[0].time, WallNow()));
}

TEST_CASE("a tenure that is extended in time goes on, and is never made shorter") {
  const MonotonicTime zero = MonotonicTime::FromEpoch(absl::ZeroDuration());
  Tenure tenure(1, zero + absl::Seconds(5));
  CHECK(tenure.Extend(zero + absl::Seconds(4), zero + absl::Seconds(9)));
  CHECK(tenure.Extend(zero + absl::Seconds(4), zero + absl::Seconds(6)));
  CHECK(tenure.Covers(zero + absl::Seconds(8)));
  tenure.End();
  CHECK_FALSE(tenure.Covers(zero + absl::Seconds(8)));
  CHECK_FALSE(tenure.Extend(zero + absl::Seconds(8), zero + absl::Seconds(20)));
}

}  // namespace
}  // namespace convene::rendezvous

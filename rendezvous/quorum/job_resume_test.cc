// Restarts of the daemon, as stories (story.h tells how to read them), and a comparison of random
// jobs with themselves after a restart.
#include <catch2/catch.hpp>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "rendezvous/quorum/job_record.h"
#include "rendezvous/quorum/testing/story.h"

namespace convene::rendezvous {
namespace {

// Two nodes in epoch 1.
const char kTwoRun[] = R"(
    > a hello incarnation=7
    a: welcome
    > b hello incarnation=8
    b: welcome
    > a ready
    > b ready
    a: epoch 1 node 0 of 2, ranks from 0 of 2, store a, failures 0
    b: epoch 1 node 1 of 2, ranks from 1 of 2, store a, failures 0
)";

TEST_CASE(
    "after a restart of the daemon the members go on where they were, and nobody is stopped") {
  Check(Story(Nodes(2, 2, 1)), absl::StrCat(kTwoRun, R"(
    > daemon restarts
    > b' hello incarnation=8 holds running=1 last_epoch=1
    b': welcome back in epoch 1
    > wait 3s
    > b' beats epoch=0
    > a' hello incarnation=7 holds running=1 last_epoch=1
    a': welcome back in epoch 1
    > wait 3s
    > a' succeeds
    > b' succeeds
    b': close succeeded: the workers of every node succeeded
    b': end OK
    a': close succeeded: the workers of every node succeeded
    a': end OK
  )"));
}

TEST_CASE(
    "a restart of the daemon keeps the ranks in a role, also where a peer of it is gone since") {
  Check(Story(Nodes(2, 3)), R"(
    > a hello incarnation=6 workers=2 role=actor
    a: welcome
    > b hello incarnation=7 workers=3 role=actor
    b: welcome
    > c hello incarnation=8 role=critic
    c: welcome
    > a ready
    > b ready
    > c ready
    a: epoch 1 node 0 of 3, ranks from 0 of 6, store a, failures 0, role ranks from 0 of 5
    b: epoch 1 node 1 of 3, ranks from 2 of 6, store a, failures 0, role ranks from 2 of 5
    c: epoch 1 node 2 of 3, ranks from 5 of 6, store a, failures 0, role ranks from 0 of 1
    > a succeeds
    > a leaves
    a: close left: SIGTERM
    a: end OK
    > daemon restarts
    > b' hello incarnation=7 workers=3 role=actor holds
    b': welcome back in epoch 0
    b': epoch 1 node 1 of 3, ranks from 2 of 6, store a, failures 0, role ranks from 2 of 5
  )");
}

TEST_CASE("a node of an older journal, which knew no roles, has its role again once it is back") {
  Hello hello = Nodes(2, 2, 1);
  hello.join_timeout = absl::Minutes(1);
  Story story(hello);
  story.Tell(R"(
    > a hello incarnation=7 role=actor
    > b hello incarnation=8 role=critic
    > a ready
    > b ready
    > daemon of before roles restarts
    > a' hello incarnation=7 role=actor holds running=1 last_epoch=1
    > b' hello incarnation=8 role=critic holds running=1 last_epoch=1
    > a' fails
    > a' ready
  )");
  CHECK(story.Tell("> b' ready") == Flat(R"(
    > b' ready
    a': epoch 2 node 0 of 2, ranks from 0 of 2, store a', failures 1, role ranks from 0 of 1
    b': epoch 2 node 1 of 2, ranks from 1 of 2, store a', failures 1, role ranks from 0 of 1
  )"));
}

TEST_CASE("a node that had stopped before the restart, and is lost then, is not blamed") {
  Hello hello = Nodes(1, 2, 1);
  hello.join_timeout = absl::Minutes(1);
  Story story(hello);
  story.Tell(kTwoRun);
  story.Tell(R"(
    > a fails code=75
    > b ready
    > daemon restarts
    > a' hello incarnation=7 holds running=1 last_epoch=1
    > wait 3s
    > a' beats epoch=1
    > wait 3s
  )");
  CHECK_THAT(story.job().state().cause_text(), Catch::Contains("exit code 75"));
  CHECK(story.job().state().conduct().records.empty());
  CHECK(story.Tell("> a' ready") ==
        "\n> a' ready\na': epoch 2 node 0 of 1, ranks from 0 of 1, store a', failures 0\n");
}

TEST_CASE("a node that a daemon with an old memory does not know as it is, is not blamed for it") {
  Story story(Nodes(2, 2, 1));
  CHECK(story.Tell(kTwoRun) == Flat(kTwoRun));
  // The disk was full when it came to epoch 2: its Welcome said that it would hold no place.
  const std::string told = story.Tell(R"(
    > daemon restarts
    > a' hello incarnation=7 last_epoch=2
  )");
  CHECK_THAT(told, Catch::Contains("a': welcome\n"));
  CHECK(story.job().state().cause_text() ==
        "a is back, but not in its place: what this daemon remembers from before its restart is "
        "old");
  CHECK(story.job().state().conduct().records.empty());
}

TEST_CASE("who is not back when its lease from the restart ends is lost") {
  Check(Story(Nodes(1, 2)), absl::StrCat(kTwoRun, R"(
    > wait 4s
    > a beats
    > b beats
    > daemon restarts
    > a' hello incarnation=7 holds running=1 last_epoch=1
    a': welcome back in epoch 1
    > wait 4900ms
    > a' beats epoch=0
    > wait 100ms
    a': stop abort: b is lost: silent for its lease of 5s
    > a' ready
    a': epoch 2 node 0 of 1, ranks from 0 of 1, store a', failures 0
  )"));
}

TEST_CASE("a decided epoch is told to those who have not heard of it, with the same places") {
  Check(Story(Nodes(2, 2)), absl::StrCat(kTwoRun, R"(
    > daemon restarts
    > b' hello incarnation=8 holds
    b': welcome back in epoch 0
    b': epoch 1 node 1 of 2, ranks from 1 of 2, store a, failures 0
    > b' ready epoch=0
    > a' hello incarnation=7 holds running=1 last_epoch=1
    a': welcome back in epoch 1
  )"));
}

TEST_CASE("a stop that was decided is told again, and all that is owed after it is a Ready") {
  Check(Story(Nodes(2, 2, 3)), absl::StrCat(kTwoRun, R"(
    > a fails rank=0
    a: stop abort: rank 0 on a: exit code 1
    b: stop abort: rank 0 on a: exit code 1
    > a ready
    > daemon restarts
    > a' hello incarnation=7 holds running=1 last_epoch=1
    a': welcome back in epoch 1
    a': stop abort: rank 0 on a: exit code 1
    > a' fails rank=0
    > a' ready
    > b' hello incarnation=8 holds running=1 last_epoch=1
    b': welcome back in epoch 1
    b': stop abort: rank 0 on a: exit code 1
    > b' fails rank=1
    > b' ready
    a': epoch 2 node 0 of 2, ranks from 0 of 2, store a', failures 1
    b': epoch 2 node 1 of 2, ranks from 1 of 2, store a', failures 1
  )"));
}

TEST_CASE("between two epochs every survivor is waited for, not only the minimum") {
  Check(Story(Nodes(1, 2, 3)), absl::StrCat(kTwoRun, R"(
    > a fails rank=0
    a: stop abort: rank 0 on a: exit code 1
    b: stop abort: rank 0 on a: exit code 1
    > b ready
    > daemon restarts
    > b' hello incarnation=8 holds running=1 last_epoch=1
    b': welcome back in epoch 1
    b': stop abort: rank 0 on a: exit code 1
    > b' ready
    > wait 3s
    > b' beats
    > a' hello incarnation=7 holds running=1 last_epoch=1
    a': welcome back in epoch 1
    a': stop abort: rank 0 on a: exit code 1
    > a' ready
    a': epoch 2 node 0 of 2, ranks from 0 of 2, store a', failures 1
    b': epoch 2 node 1 of 2, ranks from 1 of 2, store a', failures 1
  )"));
}

TEST_CASE("newcomers wait until every member is back or lost") {
  Check(Story(Nodes(1, 3)), R"(
    > a hello incarnation=7
    a: welcome
    > b hello incarnation=8
    b: welcome
    > a ready
    > b ready
    > wait 3s
    a: epoch 1 node 0 of 2, ranks from 0 of 2, store a, failures 0
    b: epoch 1 node 1 of 2, ranks from 1 of 2, store a, failures 0
    > daemon restarts
    > c hello
    c: welcome
    > c ready
    > a' hello incarnation=7 holds running=1 last_epoch=1
    a': welcome back in epoch 1
    > b' hello incarnation=8 holds running=1 last_epoch=1
    b': welcome back in epoch 1
    a': stop checkpoint: a seat is free for c: the workers save and start again
    b': stop checkpoint: a seat is free for c: the workers save and start again
  )");
}

TEST_CASE("failures are as old after a restart as they were, also those of long before it") {
  const MonotonicTime taken_at = MonotonicTime::FromEpoch(absl::Hours(200));
  JobRecord record;
  record.founder = Nodes(1, 1);
  record.founder.restart_window = absl::Hours(1);
  record.epoch = record.highest_epoch = Epoch(1);
  record.taken_at = taken_at;
  record.budget.failure_count = 1;
  record.budget.failed_at = {taken_at - absl::Minutes(10)};
  record.conduct.Exclude(taken_at, {"a", -1}, "its memory is broken");
  const MonotonicTime now = MonotonicTime::FromEpoch(absl::Minutes(1));
  const auto counted = [&](absl::Duration age) {
    record.age = age;
    return Job(now, record, MemberId(-1)).state().budget().CountedAt(now, absl::Hours(1));
  };
  CHECK(counted(absl::ZeroDuration()) == 1);
  CHECK(counted(absl::Minutes(49)) == 1);
  CHECK(counted(absl::Minutes(51)) == 0);
  record.age = absl::Seconds(20);
  CHECK(Job(now, record, MemberId(-1)).state().conduct().Excluded(now, {"a", -1}) != nullptr);
  record.age = absl::Seconds(31);
  CHECK(Job(now, record, MemberId(-1)).state().conduct().Excluded(now, {"a", -1}) == nullptr);
}

TEST_CASE("another process in the place of one that is away waits for that one's lease") {
  Check(Story(Nodes(2, 2)), R"(
    > a hello rank=0 incarnation=7
    a: welcome
    > b hello rank=1 incarnation=8
    b: welcome
    > a ready
    > b ready
    a: epoch 1 node 0 of 2, ranks from 0 of 2, store a, failures 0
    b: epoch 1 node 1 of 2, ranks from 1 of 2, store a, failures 0
    > daemon restarts
    > b2 hello rank=1 incarnation=9
    > a' hello rank=0 incarnation=7 holds running=1 last_epoch=1
    a': welcome back in epoch 1
    > b' hello rank=1 incarnation=8 holds running=1 last_epoch=1
    b2: end ALREADY_EXISTS: node rank 1 is taken: an agent of b holds it and is alive, \
       another one of b2 asks for it too. Give each node its own --node-rank
    b': welcome back in epoch 1
  )");
}

TEST_CASE("an agent that does not hold its place, or is ahead of the record, begins anew") {
  for (const char* hello : {"last_epoch=1", "holds running=2 last_epoch=2"}) {
    Story story(Nodes(1, 2));
    story.Tell(Flat(kTwoRun));
    const std::string told =
        story.Tell(absl::StrCat("> daemon restarts\n> a' hello incarnation=7 ", hello));
    CHECK_THAT(told, Catch::Contains("a': welcome\n"));
    CHECK(story.job().View(story.now()).nodes.size() == 2);
  }
}

TEST_CASE("a member that came back and lost its seat has the join timeout for another one") {
  Hello hello = Nodes(1, 1, 3);
  hello.join_timeout = absl::Seconds(40);
  Story story(hello);
  story.Tell(R"(
    > a hello incarnation=7
    > a ready
    > daemon restarts
    > x hello
    > x ready
    > wait 4s
    > x beats
    > a' hello incarnation=7 holds running=1 last_epoch=1
    > a' fails
    > a' ready
    > a' fails
    > a' ready
    > a' fails
    > a' ready
  )");
  REQUIRE(story.job().state().epoch() == Epoch(4));  // of x
  CHECK(story.Tell("> rest 39s") == "\n> rest 39s\n");
  CHECK_THAT(story.Tell("> rest 1s"), Catch::Contains("no seat became free"));
}

TEST_CASE("a stream that broke unnoticed is replaced without a stop when the place is held") {
  Check(Story(Nodes(2, 2)), absl::StrCat(kTwoRun, R"(
    > a' hello incarnation=7 holds running=1 last_epoch=1
    a: end ABORTED: another stream of this agent, incarnation 7, went on in the place of this one of 7
    a': welcome back in epoch 1
    > a' succeeds
    > b succeeds
    b: close succeeded: the workers of every node succeeded
    b: end OK
    a': close succeeded: the workers of every node succeeded
    a': end OK
  )"));
}

TEST_CASE("a node that had succeeded and whose stream breaks keeps its place, without a journal") {
  Story story(Nodes(1, 2, 1));
  story.Tell(kTwoRun);
  const char kCutOff[] = R"(
    > a succeeds
    > a drops
    > show a
    a: away: succeeded; its connection closed, and it is not back yet
  )";
  REQUIRE(story.Tell(kCutOff) == Flat(kCutOff));
  SECTION("it is back") {
    Check(std::move(story), R"(
      > a' hello incarnation=7 holds running=1 last_epoch=1
      a': welcome back in epoch 1
      > a' succeeds
      > show a
      a: succeeded
      > b succeeds
      b: close succeeded: the workers of every node succeeded
      b: end OK
      a': close succeeded: the workers of every node succeeded
      a': end OK
    )");
  }
  SECTION("it is not back in its lease: nobody misses it") {
    Check(std::move(story), R"(
      > wait 3s
      > b beats
      > wait 3s
      > show a
      > b succeeds
      b: close succeeded: the workers of every node succeeded
      b: end OK
    )");
  }
  SECTION("the job ends meanwhile") {
    Check(std::move(story), R"(
      > b succeeds
      b: close succeeded: the workers of every node succeeded
      b: end OK
    )");
  }
  SECTION("the epoch breaks: the others do not wait for it") {
    Check(std::move(story), R"(
      > b fails rank=1
      b: stop abort: rank 1 on b: exit code 1
      > b ready
      b: epoch 2 node 0 of 1, ranks from 0 of 1, store b, failures 1
      > a' hello incarnation=7 holds running=1 last_epoch=1
      a': welcome
    )");
  }
  SECTION("an agent of an older version asks for no place") {
    Check(std::move(story), R"(
      > a' hello incarnation=7 last_epoch=1
      a': welcome
      > b succeeds
      b: close succeeded: the workers of every node succeeded
      b: end OK
      a': close succeeded: the workers of every node succeeded
      a': end OK
    )");
  }
  SECTION("another process of its host joins beside it") {
    Check(std::move(story), R"(
      > a' hello incarnation=9
      a': welcome
    )");
  }
}

TEST_CASE("a node that had succeeded goes at once where another process has claimed its rank") {
  Check(Story(Nodes(2, 2)), R"(
    > a hello incarnation=7 rank=0
    a: welcome
    > b hello incarnation=8 rank=1
    b: welcome
    > a ready
    > b ready
    a: epoch 1 node 0 of 2, ranks from 0 of 2, store a, failures 0
    b: epoch 1 node 1 of 2, ranks from 1 of 2, store a, failures 0
    > a succeeds
    > a' hello incarnation=9 rank=0
    > a drops
    a': welcome
  )");
}

TEST_CASE("status shows who is away") {
  Story story(Nodes(2, 2));
  story.Tell(Flat(kTwoRun));
  story.Tell("> daemon restarts\n> a' hello incarnation=7 holds running=1 last_epoch=1");
  const JobView view = story.job().View(story.now());
  REQUIRE(view.nodes.size() == 2);
  CHECK(view.nodes[0].state == "running");
  CHECK(view.nodes[1].state == "away");
  CHECK(view.nodes[1].group_rank == 1);
  CHECK(view.why == "running on 2 nodes, 1 of them not heard of since the daemon was restarted");
}

TEST_CASE("a closed job stays closed, with its outcome and the one to blame") {
  Story story(Nodes(2, 2, 0));
  story.Tell(Flat(kTwoRun));
  story.Tell("> a fails rank=0\n> daemon restarts");
  REQUIRE(story.job().closed());
  Outbox outbox;
  story.job().SendAway(MemberId(99), &outbox);
  const Close& close = std::get<Close>(std::get<DaemonEvent>(outbox.items[0].what).body);
  CHECK(close.outcome == Outcome::kFailed);
  CHECK_THAT(close.why, Catch::Contains("--max-restarts allows 0"));
  REQUIRE(close.first_failure.has_value());
}

// One job and its agents; what it says, by agent.
class Side {
 public:
  explicit Side(const Hello& hello) : hello_(hello), job_(MonotonicTime(), hello, Epoch()) {}

  void Join(int agent, bool holds) {
    if (!holds) ready_[agent] = false;
    Hello hello = hello_;
    hello.host = absl::StrCat("node", agent);
    hello.holds_place = holds;
    hello.running_epoch = hello.last_epoch = epochs_[agent];
    streams_[agent] = MemberId(++last_id_);
    agents_[streams_[agent]] = agent;
    Outbox outbox;
    REQUIRE(job_.Join(now_, streams_[agent], Incarnation(100 + agent), hello, &outbox).ok());
    Hear(outbox);
  }
  void Say(int agent, const AgentEvent& event) {
    if (std::holds_alternative<Ready>(event)) ready_[agent] = true;
    Outbox outbox;
    // No workers of another epoch, which the daemon would ask it to stop.
    const bool is_heartbeat = std::holds_alternative<Heartbeat>(event);
    job_.Receive(now_, streams_[agent], is_heartbeat ? Epoch() : epochs_[agent], event, &outbox);
    Hear(outbox);
  }
  void Drop(int agent) {
    Outbox outbox;
    job_.Disconnect(now_, streams_[agent], &outbox);
    streams_.erase(agent);
    Hear(outbox);
  }
  bool Has(int agent) const { return streams_.count(agent) > 0; }
  void Restart() {
    job_ = Job(now_, job_.Record(now_), MemberId(-1000));
    Outbox outbox;
    job_.Tick(now_, &outbox);
    Hear(outbox);
    const std::map<int, MemberId> before = std::move(streams_);
    streams_.clear();
    const std::map<int, bool> were_ready = ready_;
    for (const auto& [agent, id] : before) {
      Join(agent, true);
      const auto ready = were_ready.find(agent);
      if (ready != were_ready.end() && ready->second)
        Say(agent, Ready{absl::StrCat("node", agent), 1});
    }
  }
  std::string TakeWords() { return std::move(words_); }
  const Job& job() const { return job_; }
  std::string phase() const { return job_.View(now_).phase; }

 private:
  void Hear(const Outbox& outbox) {
    std::map<int, std::string> said;  // streams have other numbers here and there
    for (const Outbox::Item& item : outbox.items) {
      const auto found = agents_.find(item.to);
      const auto* event = std::get_if<DaemonEvent>(&item.what);
      if (found == agents_.end() || event == nullptr) continue;
      std::string& words = said[found->second];
      if (const auto* assignment = std::get_if<Assignment>(&event->body)) {
        epochs_[found->second] = event->epoch;
        ready_[found->second] = false;
        absl::StrAppend(&words, " epoch ", event->epoch.value(), " node ", assignment->group_rank,
                        "/", assignment->group_world_size, " ranks ", assignment->first_global_rank,
                        "/", assignment->world_size, " store ", assignment->store_host,
                        " failures ", assignment->restart_count);
      } else if (const auto* stop = std::get_if<Stop>(&event->body)) {
        absl::StrAppend(&words, " stop ", static_cast<int>(stop->kind), " ", stop->why);
      } else if (const auto* close = std::get_if<Close>(&event->body)) {
        absl::StrAppend(&words, " close ", static_cast<int>(close->outcome), " ", close->why);
        streams_.erase(found->second);
      }
    }
    for (const auto& [agent, words] : said) absl::StrAppend(&words_, agent, ":", words, "\n");
  }

  Hello hello_;
  MonotonicTime now_;
  Job job_;
  int64_t last_id_ = 0;
  std::map<int, MemberId> streams_;
  std::map<MemberId, int> agents_;
  std::map<int, Epoch> epochs_;
  std::map<int, bool> ready_;
  std::string words_;
};

TEST_CASE("whatever has happened, a job decides after a restart as it would have without") {
  int restarts = 0;
  for (uint64_t seed = 1; seed <= 500; ++seed) {
    std::mt19937_64 random(seed);
    const auto below = [&](int bound) {
      return static_cast<int>(random() % static_cast<uint64_t>(bound));
    };
    Hello hello = Nodes(1 + below(2), 2 + below(3), below(5));
    hello.job_id = "job";
    hello.last_call = absl::ZeroDuration();
    hello.local_world_size = 1 + below(3);
    Side stays(hello);
    Side restarted(hello);
    std::string history;
    for (int step = 0; step < 60 && !stays.job().closed(); ++step) {
      const int agent = below(5);
      const int what = below(10);
      WorkerFailure failure;
      failure.global_rank = agent;
      failure.why = "simulated";
      absl::StrAppend(&history, agent, "/", what, " ");
      for (Side* side : {&stays, &restarted}) {
        if (!side->Has(agent)) {
          side->Join(agent, false);
        } else if (what < 5) {
          side->Say(agent, Ready{absl::StrCat("node", agent), 1});
        } else if (what == 5) {
          side->Say(agent, failure);
        } else if (what < 8) {
          side->Say(agent, WorkersSucceeded());
        } else if (what == 8) {
          side->Drop(agent);
        } else {
          side->Say(agent, Heartbeat());
        }
      }
      INFO("seed " << seed << ", agent/event: " << history);
      REQUIRE(stays.TakeWords() == restarted.TakeWords());
      REQUIRE(stays.phase() == restarted.phase());
      if (below(8) == 0 && IsWorthRecording(restarted.job().state()) && !stays.job().closed()) {
        absl::StrAppend(&history, "restart ");
        restarted.Restart();
        restarted.TakeWords();  // what was said already is said again
        ++restarts;
      }
    }
  }
  CHECK(restarts > 150);
}

}  // namespace
}  // namespace convene::rendezvous

// The cost of a job in messages and bytes: no more for an agent of a large job than for one of a
// small job, and only heartbeats while nothing happens. And in time, where all nodes fail at once.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdint>
#include <ctime>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "rendezvous/attend/job_table.h"
#include "rendezvous/quorum/job.h"
#include "rendezvous/quorum/messages.h"
#include "rendezvous/wire/wire.h"
#include "tools/base/clock.h"
#include "tools/base/testing/status_testing.h"

namespace convene::rendezvous {
namespace {

constexpr absl::Duration kLease = absl::Seconds(15);
constexpr absl::Duration kBeat = absl::Seconds(5);
constexpr char kRun[] = "llama-70b";

// `count` agents of one job, and what they and the daemon say to each other, as bytes on the wire.
class Meeting {
 public:
  explicit Meeting(int count) : count_(count) {
    for (int i = 0; i < count_; ++i) {
      Hello hello;
      hello.job_id = kRun;
      hello.host = absl::StrCat("node", i, ".cluster.example");
      hello.nodes_min = 1;
      hello.nodes_max = count_;
      hello.max_restarts = 3;
      hello.lease = kLease;
      Up({IncarnationOf(i), Epoch(), hello});
      Outbox outbox;
      REQUIRE_OK(table_.Join(now_, MemberId(i + 1), IncarnationOf(i), hello, &outbox));
      Down(outbox);
    }
  }

  void AllReady() {
    for (int i = 0; i < count_; ++i) {
      Say(i, Ready{absl::StrCat("node", i, ".cluster.example"), 40000});
    }
  }

  void Say(int i, const AgentEvent& event) {
    Up({IncarnationOf(i), epoch_, event});
    Outbox outbox;
    table_.Receive(now_, MemberId(i + 1), IncarnationOf(i), epoch_, event, &outbox);
    Down(outbox);
  }

  // Every agent beats each kBeat; the daemon looks when it wants to. How often it did.
  int Rest(absl::Duration duration) {
    int looks = 0;
    const MonotonicTime end = now_ + duration;
    MonotonicTime beat = now_ + kBeat;
    while (now_ < end) {
      now_ = std::min(table_.wake_at(), beat);
      if (table_.wake_at() <= now_) {
        ++looks;
        Outbox outbox;
        table_.Tick(now_, &outbox);
        Down(outbox);
      }
      if (now_ < beat) continue;
      for (int i = 0; i < count_; ++i) Say(i, Heartbeat());
      beat = now_ + kBeat;
    }
    return looks;
  }

  struct Traffic {
    int64_t messages_up = 0, messages_down = 0, bytes = 0;
  };
  // Since the last call.
  Traffic Take() { return std::exchange(traffic_, Traffic()); }
  std::string phase() const { return table_.Views(now_, kRun)->front().phase; }

 private:
  static Incarnation IncarnationOf(int i) { return Incarnation(0x9e3779b97f4a7c15 + i); }

  void Up(const AgentEnvelope& envelope) {
    ++traffic_.messages_up;
    traffic_.bytes += ToWire(envelope).ByteSizeLong();
  }

  void Down(const Outbox& outbox) {
    for (const Outbox::Item& item : outbox.items) {
      const auto& event = std::get<DaemonEvent>(item.what);
      epoch_ = event.epoch;
      ++traffic_.messages_down;
      traffic_.bytes += ToWire(Incarnation(~uint64_t{0}), event).ByteSizeLong();
    }
  }

  const int count_;
  JobTable table_;
  MonotonicTime now_ = MonotonicTime::FromEpoch(absl::Hours(1));
  Epoch epoch_;
  Traffic traffic_;
};

// Of each agent and in both ways.
void CheckCost(const Meeting::Traffic& traffic, int agents, int messages_up, int messages_down,
               int most_bytes_an_agent) {
  INFO(agents << " agents, " << traffic.bytes / agents << " bytes each");
  CHECK(traffic.messages_up == agents * messages_up);
  CHECK(traffic.messages_down == agents * messages_down);
  CHECK(traffic.bytes <= agents * most_bytes_an_agent);
}

TEST_CASE("a formation costs each agent four messages and 350 bytes, of 10 agents or of 3000") {
  for (const int agents : {10, 300, 3000}) {
    Meeting meeting(agents);
    meeting.AllReady();
    REQUIRE(meeting.phase() == "running");
    CheckCost(meeting.Take(), agents, 2, 2, 350);
  }
}

TEST_CASE("a restart costs each agent three messages and 350 bytes, of 10 agents or of 3000") {
  for (const int agents : {10, 300, 3000}) {
    Meeting meeting(agents);
    meeting.AllReady();
    meeting.Take();
    WorkerFailure failure;
    failure.why = "killed by SIGKILL";
    meeting.Say(agents - 1, failure);
    CHECK(meeting.phase() == "stopping");
    Meeting::Traffic traffic = meeting.Take();
    CHECK(traffic.messages_down <= agents);
    meeting.AllReady();
    REQUIRE(meeting.phase() == "running");
    const Meeting::Traffic forming = meeting.Take();
    traffic.messages_up += forming.messages_up - 1;  // the failure itself
    traffic.messages_down += forming.messages_down;
    traffic.bytes += forming.bytes;
    INFO(traffic.messages_down);
    CheckCost(traffic, agents, 1, 2, 350);
  }
}

// Processor time, of a job whose nodes have told of so many ranks each, from the first failure on.
double SecondsOfFailures(int told_ranks) {
  constexpr int kAgents = 1000;
  Meeting meeting(kAgents);
  meeting.AllReady();
  Heartbeat beat;
  beat.progress = WorkerProgress{7, 1, "step"};
  for (int rank = 0; rank < told_ranks; ++rank) {
    beat.ranks.push_back({.local_rank = rank, .step = 7, .phase = "step"});
  }
  for (int i = 0; i < kAgents; ++i) meeting.Say(i, beat);
  WorkerFailure failure;
  failure.why = "killed by SIGABRT";
  meeting.Say(0, failure);
  CHECK(meeting.phase() == "stopping");
  const std::clock_t begin = std::clock();
  for (int i = 1; i < kAgents; ++i) meeting.Say(i, failure);
  return static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
}

TEST_CASE(
    "when a failure breaks all nodes, what the others tell of it costs nothing for each rank") {
  const double seconds = SecondsOfFailures(0);
  const double seconds_with_ranks = SecondsOfFailures(8);
  INFO(seconds << " s, with ranks " << seconds_with_ranks << " s");
  CHECK(seconds_with_ranks < 3 * seconds + 0.1);
}

TEST_CASE(
    "while nothing happens there are heartbeats and their answers, and the daemon looks at leases "
    "only") {
  Meeting meeting(20);
  meeting.AllReady();
  REQUIRE(meeting.phase() == "running");
  meeting.Take();
  const int looks = meeting.Rest(absl::Minutes(10));
  const Meeting::Traffic traffic = meeting.Take();
  CHECK(traffic.messages_up == 20 * (absl::Minutes(10) / kBeat));
  CHECK(traffic.messages_down == traffic.messages_up);  // each is answered, and that is all
  CHECK(looks <= absl::Minutes(10) / (kLease - kBeat));
}

TEST_CASE("an agent that waits for others is told when it can begin, and asks nothing") {
  JobTable table;
  Hello hello;
  hello.job_id = kRun;
  hello.host = "node1";
  hello.nodes_min = hello.nodes_max = 2;
  hello.join_timeout = absl::Minutes(10);
  hello.lease = absl::Hours(1);
  MonotonicTime now = MonotonicTime::FromEpoch(absl::Hours(1));
  Outbox outbox;
  REQUIRE_OK(table.Join(now, MemberId(1), Incarnation(1), hello, &outbox));
  table.Receive(now, MemberId(1), Incarnation(1), Epoch(), Ready{"node1", 1}, &outbox);
  outbox.items.clear();
  CHECK(table.wake_at() == now + absl::Minutes(10));
  now = now + absl::Minutes(5);
  REQUIRE_OK(table.Join(now, MemberId(2), Incarnation(2), hello, &outbox));
  table.Receive(now, MemberId(2), Incarnation(2), Epoch(), Ready{"node2", 1}, &outbox);
  const bool first_was_told =
      std::any_of(outbox.items.begin(), outbox.items.end(), [](const Outbox::Item& item) {
        return item.to == MemberId(1) && std::holds_alternative<DaemonEvent>(item.what);
      });
  CHECK(first_was_told);
}

}  // namespace
}  // namespace convene::rendezvous

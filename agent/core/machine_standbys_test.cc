// A node that knows several endpoints: daemons that take turns over one memory.
#include <catch2/catch.hpp>
#include <cstdint>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "agent/core/machine.h"
#include "agent/core/testing/machine_story.h"

namespace convene::agent {
namespace {

using story::Node;

constexpr absl::Duration kNow = absl::ZeroDuration();

// Endpoints a, b and c.
class Standbys : public Node {
 public:
  Standbys() { state_.rules.endpoints = {"a:1", "b:1", "c:1"}; }

  std::string Miss(const char* why) { return LoseStream(absl::UnavailableError(why)); }
  std::string Refuse(const char* why) { return LoseStream(absl::PermissionDeniedError(why)); }
};

TEST_CASE("a round asks each endpoint at once, and waits before the next round") {
  Standbys node;
  CHECK(node.Feed(Begin{}) == "open last_epoch=0");
  for (int round = 0; round < 2; ++round) {
    CHECK(node.Miss("refused").empty());
    CHECK(node.After(kNow) == "open last_epoch=0 at=1");
    CHECK(node.Miss("no answer").empty());
    CHECK(node.After(kNow) == "open last_epoch=0 at=2");
    CHECK(node.Miss("not known").empty());
    CHECK(node.After(kNow).empty());
    CHECK(node.After(absl::Seconds(1)) == "open last_epoch=0");
  }
}

TEST_CASE("where none answers in time, each endpoint is named with its reason") {
  Standbys node;
  node.Feed(Begin{});
  node.Miss("refused");
  CHECK(node.After(absl::Seconds(9)) == "open last_epoch=0 at=1");
  node.now_ = node.now_ + absl::Seconds(1);
  CHECK(node.Miss("no answer") == "finish 69");
  CHECK_THAT(
      node.result_.explanation,
      Catch::Contains("none of 3 endpoints answers as the rendezvous: a:1 (refused), b:1 (no "
                      "answer), c:1 (not tried yet)"));
}

TEST_CASE("an endpoint that is no daemon is passed over, and one that refuses this node too") {
  Standbys node;
  node.Feed(Begin{});
  CHECK(node.LoseStream(absl::FailedPreconditionError("a web server")).empty());
  CHECK(node.After(kNow) == "open last_epoch=0 at=1");
  CHECK(node.Refuse("another token") ==
        "say this node is refused, and goes on asking: another token");
  CHECK(node.After(kNow) == "open last_epoch=0 at=2");
  CHECK(node.Refuse("another token").empty());  // it was told
  CHECK(node.After(absl::Seconds(1)) == "open last_epoch=0");
  CHECK(node.WelcomeBack(0, false) == "store");
}

TEST_CASE("a node that every endpoint refuses in a round ends, before its first Welcome") {
  Standbys node;
  node.Feed(Begin{});
  node.Miss("no answer");
  for (const char* why : {"another CA", "another token"}) {
    node.After(kNow);
    node.Refuse(why);
  }
  CHECK(node.After(absl::Seconds(1)) == "open last_epoch=0");
  CHECK(node.Refuse("expired") == "finish 64");
  CHECK_THAT(node.result_.explanation,
             Catch::Contains("refused this node: none of 3 endpoints answers as the rendezvous: "
                             "a:1 (expired), b:1 (another CA), c:1 (another token)"));
}

TEST_CASE("a node that the leader refuses ends when a takeover would be over") {
  Standbys node;
  node.state_.rules.connect_timeout = absl::Minutes(1);
  node.Feed(Begin{});
  CHECK_THAT(node.Refuse("another token"), Catch::Contains("say this node is refused"));
  for (int round = 0; round < 3; ++round) {
    for (const char* at : {"at=1", "at=2"}) {
      CHECK_THAT(node.After(absl::ZeroDuration()), Catch::Contains(at));
      CHECK(node.Miss("connection refused").empty());  // It stands by.
    }
    CHECK_THAT(node.After(absl::Seconds(2)), Catch::Contains("open"));
    CHECK(node.Refuse("another token").empty());
  }
  CHECK_THAT(node.After(absl::ZeroDuration()), Catch::Contains("at=1"));
  CHECK(node.Miss("connection refused").empty());
  const std::string last = node.After(absl::Seconds(14.5));
  CHECK_THAT(last, Catch::Contains("at=2"));
  CHECK_FALSE(absl::StrContains(last, "does not answer yet"));  // It was told what is wrong.
  CHECK(node.Miss("connection refused") == "finish 64");
  CHECK_THAT(node.result_.explanation, Catch::Contains("refused this node: none of 3 endpoints"));
}

TEST_CASE("a leader is found behind endpoints that all refused a running node") {
  Standbys node;
  node.RunSafely();
  node.LoseStream();
  CHECK(node.After(kNow) == "open last_epoch=1 at=1 holds=1 never-hosts");
  CHECK_THAT(node.Refuse("another token"), Catch::Contains("say this node is refused"));
  for (const char* at : {"at=2 ", ""}) {
    CHECK(node.After(absl::Milliseconds(50)) ==
          absl::StrCat("open last_epoch=1 ", at, "holds=1 never-hosts"));
    CHECK(node.Refuse("another token").empty());
  }
  CHECK_THAT(node.After(absl::Milliseconds(100)), Catch::Contains("open last_epoch=1 at=1"));
  CHECK(node.WelcomeBack(1, true).empty());
  CHECK(node.state_.phase == Phase::kRunning);
}

TEST_CASE("the leader is killed: the next endpoints are asked at once, and no worker notices") {
  Standbys node;
  node.RunSafely();
  CHECK(node.LoseStream().empty());
  CHECK(node.After(kNow) == "open last_epoch=1 at=1 holds=1 never-hosts");
  CHECK(node.Miss("refused").empty());
  CHECK(node.After(kNow) == "open last_epoch=1 at=2 holds=1 never-hosts");
  CHECK(node.WelcomeBack(1, true).empty());
  CHECK(node.state_.phase == Phase::kRunning);
  // The next round begins behind that endpoint.
  CHECK(node.After(absl::Seconds(1)) == "send(1) heartbeat");
  CHECK(node.LoseStream().empty());
  CHECK(node.After(kNow) == "open last_epoch=1 holds=1 never-hosts");
}

TEST_CASE("a leader that says nothing for a quarter of the lease is left") {
  Standbys node;
  node.RunSafely();  // a lease of 8 s
  CHECK(node.After(absl::Seconds(1)) == "send(1) heartbeat");
  SECTION("silent from then on") {
    CHECK(node.After(absl::Seconds(1)) == "send(1) heartbeat");
    CHECK(node.After(absl::Seconds(1)) ==
          "say the rendezvous is left: it answers no heartbeats; close; open last_epoch=1 at=1 "
          "holds=1 never-hosts");
    CHECK(node.state_.phase == Phase::kRunning);
  }
  SECTION("an answer counts for the heartbeat that it answers") {
    CHECK(node.After(absl::Seconds(1)) == "send(1) heartbeat");
    CHECK(node.Hear().empty());
    CHECK(node.After(absl::Milliseconds(1999)) == "send(1) heartbeat");
    CHECK_THAT(node.After(absl::Milliseconds(1)), Catch::Contains("close"));
  }
  SECTION("this process did not run, and the daemon had no time to be silent") {
    node.now_ = node.now_ + absl::Seconds(3);
    CHECK(node.Feed(Paused{absl::Seconds(3)}).empty());
    CHECK(node.After(absl::Milliseconds(1999)) == "send(1) heartbeat");
    CHECK_THAT(node.After(absl::Milliseconds(1)), Catch::Contains("close"));
  }
}

TEST_CASE("one endpoint is not left for its silence") {
  Node node;
  node.RunSafely();
  CHECK(node.After(absl::Seconds(2)) == "send(1) heartbeat");
  CHECK(node.After(absl::Seconds(4)) == "send(1) heartbeat");
  CHECK(node.After(absl::Milliseconds(999)).empty());
  CHECK(node.After(absl::Milliseconds(1)) == "stop abort SIGTERM");  // The fence.
}

TEST_CASE("a daemon that takes the Hello and says no Welcome is left") {
  Standbys node;
  node.state_.rules.hello.lease = absl::Seconds(20);
  node.Feed(Begin{});
  CHECK(node.After(absl::Milliseconds(6999)).empty());
  CHECK(node.After(absl::Milliseconds(1)) == "close; open last_epoch=0 at=1");
  CHECK_THAT(node.state_.misses[0], Catch::Contains("says no Welcome"));
}

TEST_CASE("a leader of an older term is not taken for the leader") {
  Standbys node;
  node.Feed(Begin{});
  node.WelcomeBack(0, false, 7);
  node.Feed(StoreStarted{7000});
  REQUIRE(node.Assign(1) == "start epoch=1");
  node.LoseStream();
  node.After(kNow);
  const MonotonicTime heard_at = node.state_.heard_at;
  node.now_ = node.now_ + absl::Seconds(1);
  CHECK(node.WelcomeBack(9, true, 6) == "close");
  CHECK(node.state_.highest_epoch == Epoch(1));
  CHECK(node.state_.heard_at == heard_at);
  CHECK(node.After(kNow) == "open last_epoch=1 at=2 holds=1 never-hosts");
  CHECK(node.WelcomeBack(1, true, 8).empty());
  CHECK(node.state_.phase == Phase::kRunning);
}

TEST_CASE("refused everywhere, the fence stays: one may lead where this node does not ask") {
  Standbys node;
  node.RunSafely();
  node.LoseStream();
  const MonotonicTime fence_at = node.state_.fence_at;
  for (int i = 0; i < 3; ++i) {
    node.After(kNow);
    node.Feed(StreamEnded{absl::UnavailableError("refused"), node.now_});
    node.now_ = node.now_ + absl::Seconds(1);
  }
  CHECK(node.state_.fence_at == fence_at);
}

TEST_CASE("of daemons with terms the fence stays for a node that knows one of them, too") {
  for (const int64_t term : {0, 3}) {
    Node node;
    node.Feed(Begin{});
    const std::string welcomed = node.WelcomeBack(0, false, term);
    CHECK((term > 0) == absl::StrContains(welcomed, "name all of them in --rdzv-endpoint"));
    node.Feed(StoreStarted{7000});
    REQUIRE(node.Assign(1) == "start epoch=1");
    node.LoseStream();
    const MonotonicTime fence_at = node.state_.fence_at;
    node.After(kNow);
    node.now_ = node.now_ + absl::Seconds(1);
    node.Feed(StreamEnded{absl::UnavailableError("refused"), node.now_});
    CHECK((node.state_.fence_at == fence_at) == (term > 0));
  }
}

TEST_CASE("daemons that share no memory are told of once") {
  Standbys node;
  node.Feed(Begin{});
  CHECK_THAT(node.WelcomeIn(0),
             Catch::Contains("a node that reaches another endpoint begins a run"));
  node.LoseStream();
  node.After(kNow);
  CHECK(node.WelcomeIn(0) == "store");
}

}  // namespace
}  // namespace convene::agent

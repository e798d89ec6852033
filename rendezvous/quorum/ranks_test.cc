#include "rendezvous/quorum/ranks.h"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "rendezvous/quorum/job_state.h"
#include "rendezvous/quorum/messages.h"
#include "tools/base/clock.h"

namespace convene::rendezvous {
namespace {

struct Newcomer {
  std::string host;
  int node_rank = -1;
  std::string topology;
};

using Hosts = std::vector<std::string>;

// Nodes that come, form epochs and go.
class Table {
 public:
  explicit Table(int nodes_max) : nodes_max_(nodes_max) {}

  void Come(const std::vector<Newcomer>& nodes) {
    for (const Newcomer& node : nodes) {
      Hello hello;
      hello.host = node.host;
      hello.node_rank = node.node_rank;
      hello.topology = node.topology;
      ++last_id_;
      state_.Join(now_, MemberId(last_id_), Incarnation(last_id_), hello, MemberId(), 1);
      state_.Apply(now_, MemberId(last_id_), Epoch(), Ready{node.host, 1}, 1);
    }
  }

  void Go(const std::string& host) {
    for (const auto& [id, node] : state_.nodes()) {
      if (node.host == host) return state_.Remove(now_, id, JobState::Departure::kLost, "", 1);
    }
  }

  // Hosts in the order of ranks.
  Hosts Form() {
    const Seating seating = SeatMembers(state_, nodes_max_);
    state_.BeginEpoch(now_, seating.members, seating.seats);
    Hosts hosts;
    for (const MemberId member : seating.members) hosts.push_back(state_.Find(member)->host);
    return hosts;
  }

  void Stop() {
    state_.BeginStop(now_, StopKind::kAbort);
    std::vector<MemberId> members;
    for (const auto& [id, node] : state_.nodes()) {
      if (node.state == NodeState::kRunning) members.push_back(id);
    }
    for (const MemberId id : members) {
      state_.Apply(now_, id, state_.epoch(), Ready{state_.Find(id)->host, 1}, 1);
    }
  }

 private:
  const int nodes_max_;
  const MonotonicTime now_;
  JobState state_{MonotonicTime(), Epoch()};
  int64_t last_id_ = 0;
};

Hosts Order(const std::vector<Newcomer>& nodes, int nodes_max) {
  Table table(nodes_max);
  table.Come(nodes);
  return table.Form();
}

TEST_CASE("digits in host names compare as numbers") {
  CHECK(NaturalLess("node2", "node10"));
  CHECK_FALSE(NaturalLess("node10", "node2"));
  CHECK(NaturalLess("node", "node0"));
  CHECK(NaturalLess("rack1-node9", "rack2-node1"));
  CHECK(NaturalLess("node2", "node02"));
  CHECK_FALSE(NaturalLess("node02", "node2"));
  CHECK(NaturalLess("node02", "node3"));
  CHECK(NaturalLess("n99999999999999999999999", "n100000000000000000000000"));
  CHECK_FALSE(NaturalLess("a1", "a1"));
}

TEST_CASE("without node ranks the order is the natural one of host names") {
  CHECK(Order({{"node10"}, {"node2"}, {"node1"}}, 3) == Hosts{"node1", "node2", "node10"});
}

TEST_CASE("given node ranks give the order, even when they count from one") {
  CHECK(Order({{"a", 2}, {"b", 0}, {"c", 1}}, 3) == Hosts{"b", "c", "a"});
  CHECK(Order({{"a", 3}, {"b", 1}, {"c", 2}}, 3) == Hosts{"b", "c", "a"});
}

TEST_CASE("nodes with a rank of their own go to it, the others around them") {
  CHECK(Order({{"x"}, {"y"}, {"b", 1}}, 3) == Hosts{"x", "b", "y"});
}

TEST_CASE("more nodes than places: the last in order wait") {
  CHECK(Order({{"c"}, {"b"}, {"a"}}, 2) == Hosts{"a", "b"});
}

TEST_CASE("several agents of one host stand in the order of their incarnations") {
  CHECK(Order({{"a"}, {"a"}, {"a"}}, 3) == Hosts{"a", "a", "a"});
}

TEST_CASE(
    "labels group the nodes, node ranks order the groups and the nodes within, none come last") {
  CHECK(Order({{"a", 5, "rack10"},
               {"b", 4, "rack10"},
               {"c", 0, "rack2"},
               {"d", 7, "rack2"},
               {"e"},
               {"node10", -1, "rack1"},
               {"node9", -1, "rack1"}},
              7) == Hosts{"c", "d", "b", "a", "node9", "node10", "e"});
}

TEST_CASE("the node of rank 0 is the first one, whatever the labels") {
  CHECK(Order({{"a", 0, "r2"}, {"b", 1, "r1"}}, 2) == Hosts{"a", "b"});
  CHECK(Order({{"a", 1, "r1"}, {"b", 0, ""}, {"c", 2, ""}}, 3) == Hosts{"b", "c", "a"});
  CHECK(Order({{"a", 3, "r1"}, {"b", 0, "r2"}, {"c", 1, "r1"}, {"d", 2, "r2"}}, 4) ==
        Hosts{"b", "d", "c", "a"});
}

TEST_CASE("labels of one branch stay together, and the branch of rank 0 is the first one") {
  for (const std::string separator : {".", "/"}) {
    const auto leaf = [&](int core, int number) {
      return absl::StrCat("core", core, separator, "leaf", number);
    };
    CHECK(Order({{"a", 0, leaf(2, 1)},
                 {"b", 1, leaf(1, 3)},
                 {"c", 2, leaf(2, 2)},
                 {"d", 3, leaf(1, 4)},
                 {"e", 4, leaf(2, 1)}},
                5) == Hosts{"a", "e", "c", "b", "d"});
    CHECK(Order({{"a", -1, leaf(10, 1)},
                 {"b", -1, leaf(2, 3)},
                 {"c", -1, leaf(10, 2)},
                 {"d", -1, leaf(2, 1)},
                 {"e"}},
                5) == Hosts{"d", "b", "a", "c", "e"});
  }
  CHECK(Order({{"a", 1, "core"}, {"b", 0, "core.leaf"}, {"c", 2, "core"}}, 3) ==
        Hosts{"b", "a", "c"});
}

std::vector<Newcomer> ThreeRacks() {
  std::vector<Newcomer> nodes;
  for (int node = 3; node >= 0; --node) {
    for (const std::string rack : {"r9", "r10", "r2"}) {
      nodes.push_back({absl::StrCat(rack, "-n", node), -1, rack});
    }
  }
  return nodes;
}

TEST_CASE(
    "with labels a spare of the same one takes the hole, and one of another when there is none") {
  Table table(12);
  table.Come(ThreeRacks());
  const Hosts at_first = {"r2-n0", "r2-n1", "r2-n2",  "r2-n3",  "r9-n0",  "r9-n1",
                          "r9-n2", "r9-n3", "r10-n0", "r10-n1", "r10-n2", "r10-n3"};
  CHECK(table.Form() == at_first);

  table.Come({{"a-spare", -1, "r2"}, {"z-spare", -1, "r9"}});
  table.Go("r9-n1");
  table.Stop();
  Hosts then = at_first;
  then[5] = "z-spare";
  CHECK(table.Form() == then);

  table.Go("r10-n2");
  table.Stop();
  then[10] = "a-spare";
  CHECK(table.Form() == then);
}

TEST_CASE("without a spare the others close up in their order, and a late node goes to its label") {
  Table table(12);
  table.Come(ThreeRacks());
  table.Form();
  table.Go("r2-n3");
  table.Go("r9-n2");
  table.Stop();
  CHECK(table.Form() == Hosts{"r2-n0", "r2-n1", "r2-n2", "r9-n0", "r9-n1", "r9-n3", "r10-n0",
                              "r10-n1", "r10-n2", "r10-n3"});
  table.Come({{"late", -1, "r9"}});
  table.Stop();
  CHECK(table.Form() == Hosts{"r2-n0", "r2-n1", "r2-n2", "late", "r9-n0", "r9-n1", "r9-n3",
                              "r10-n0", "r10-n1", "r10-n2", "r10-n3"});
}

TEST_CASE("a node that comes back gets its own place, before a spare of a lower rank") {
  Table table(3);
  table.Come({{"a", 0}, {"b", 1}, {"c", 2}});
  table.Form();
  table.Come({{"spare"}});
  table.Go("c");
  table.Come({{"c", 2}});
  table.Stop();
  CHECK(table.Form() == Hosts{"a", "b", "c"});
}

}  // namespace
}  // namespace convene::rendezvous

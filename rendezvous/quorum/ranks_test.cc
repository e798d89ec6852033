#include "rendezvous/quorum/ranks.h"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "rendezvous/quorum/job_state.h"
#include "rendezvous/quorum/messages.h"
#include "tools/base/clock.h"

namespace convene::rendezvous {
namespace {

struct Newcomer {
  std::string host;
  int node_rank = -1;
};

// Hosts in the order of ranks, after `nodes` said Ready to a new job in this order.
std::vector<std::string> Order(const std::vector<Newcomer>& nodes, int nodes_max) {
  JobState state{MonotonicTime(), Epoch()};
  int64_t id = 0;
  for (const Newcomer& node : nodes) {
    Hello hello;
    hello.host = node.host;
    hello.node_rank = node.node_rank;
    ++id;
    state.Join(MonotonicTime(), MemberId(id), Incarnation(id), hello, MemberId(), 1);
    state.Apply(MonotonicTime(), MemberId(id), Epoch(), Ready{node.host, 1}, 1);
  }
  std::vector<std::string> hosts;
  for (const MemberId member : SeatMembers(state, nodes_max).members) {
    hosts.push_back(state.Find(member)->host);
  }
  return hosts;
}

using Hosts = std::vector<std::string>;

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

}  // namespace
}  // namespace convene::rendezvous

#include "rendezvous/quorum/agent_id.h"

#include <catch2/catch.hpp>

namespace convene::rendezvous {
namespace {

TEST_CASE("the hash is SipHash-2-4: the first vector of its paper's implementation") {
  CHECK(SipHashOfNothing(0x0706050403020100, 0x0f0e0d0c0b0a0908) == 0x726fdb47dd0e0e31);
}

TEST_CASE("an agent's id is its own, always the same, and not its incarnation") {
  const Incarnation one(7);
  CHECK(AgentIdOf(one) == AgentIdOf(Incarnation(7)));
  CHECK(AgentIdOf(one) != AgentIdOf(Incarnation(8)));
  CHECK(AgentIdOf(one).value() != one.value());
}

}  // namespace
}  // namespace convene::rendezvous

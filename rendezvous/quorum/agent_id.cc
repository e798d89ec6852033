#include "rendezvous/quorum/agent_id.h"

#include <bit>

namespace convene::rendezvous {
namespace {

// An arbitrary number: it makes this use of the hash different from every other one.
constexpr uint64_t kUse = 0x6167656e742d6964;

struct SipState {
  uint64_t v0, v1, v2, v3;

  void Round() {
    v0 += v1;
    v1 = std::rotl(v1, 13) ^ v0;
    v0 = std::rotl(v0, 32);
    v2 += v3;
    v3 = std::rotl(v3, 16) ^ v2;
    v0 += v3;
    v3 = std::rotl(v3, 21) ^ v0;
    v2 += v1;
    v1 = std::rotl(v1, 17) ^ v2;
    v2 = std::rotl(v2, 32);
  }
};

}  // namespace

uint64_t SipHashOfNothing(uint64_t key0, uint64_t key1) {
  SipState s = {key0 ^ 0x736f6d6570736575, key1 ^ 0x646f72616e646f6d, key0 ^ 0x6c7967656e657261,
                key1 ^ 0x7465646279746573};
  // The one block of a text without bytes is zero: there is nothing to mix in.
  for (int round = 0; round < 2; ++round) s.Round();
  s.v2 ^= 0xff;
  for (int round = 0; round < 4; ++round) s.Round();
  return s.v0 ^ s.v1 ^ s.v2 ^ s.v3;
}

AgentId AgentIdOf(Incarnation incarnation) {
  return AgentId(SipHashOfNothing(incarnation.value(), kUse));
}

}  // namespace convene::rendezvous

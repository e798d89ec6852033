// PURE. An agent's public name.
#pragma once

#include <cstdint>

#include "tools/base/strong_int.h"

namespace convene::rendezvous {

// Made from an agent's incarnation, and the same for as long as the incarnation lives, also after a
// restart of the daemon. It does not reveal the incarnation, which is a secret of the agent and the
// daemon, because a stream that knows it can take the agent's place (job.h).
using AgentId = StrongInt<struct AgentIdTag, uint64_t>;

AgentId AgentIdOf(Incarnation incarnation);

// SipHash-2-4 of the empty text. The keys can be found from it only by trying all.
uint64_t SipHashOfNothing(uint64_t key0, uint64_t key1);

}  // namespace convene::rendezvous

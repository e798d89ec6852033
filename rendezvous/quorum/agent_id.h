// PURE. An agent's name where anybody may read it.
#pragma once

#include <cstdint>

#include "tools/base/strong_int.h"

namespace convene::rendezvous {

// Made from an agent's incarnation, and the same for as long as that lives, also for a daemon that
// was restarted. It does not lead back: an incarnation is a secret of the agent and the daemon,
// because a stream that says it takes the agent's place (job.h).
using AgentId = StrongInt<struct AgentIdTag, uint64_t>;

AgentId AgentIdOf(Incarnation incarnation);

// SipHash-2-4 of the empty text. The keys cannot be found from it but by trying.
uint64_t SipHashOfNothing(uint64_t key0, uint64_t key1);

}  // namespace convene::rendezvous

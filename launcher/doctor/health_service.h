// The health service of a node that its operator runs, as a part of `convene doctor`.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "agent/machine/diagnose.h"
#include "rendezvous/client/node_health.h"

namespace convene::launcher {

// Asks the service at `socket` (AskNodeHealth). An error where it reports failures or does not
// answer in time; a note where no service is there, since not every node has one. Never fails.
agent::Finding AskHealthService(const std::string& socket);

// PURE. The finding of an answer.
agent::Finding FindingOf(const std::string& socket,
                         const absl::StatusOr<rendezvous::NodeHealth>& health);

// PURE. The member "fail_count" of the service's JSON; 0 where there is none.
int64_t FailCountOf(const std::string& output);

}  // namespace convene::launcher

// What a rank does that the layout does not need: it waits, and ends when the training ends.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "rendezvous/store/store_client.h"
#include "worker_runtime/contract/contract.h"
#include "worker_runtime/mesh/mesh.h"

namespace convene::worker {

// PURE. The contract of a rank that trains, as if the job had no spares. Spares are the ranks from
// layout.world_size() on; the ranks of a node follow each other.
Contract WithoutSpares(const Contract& contract, const Layout& layout);

// Rank 0 calls it when the training has ended in order: all steps are done, or somebody asked for a
// stop and the work is saved. `key_prefix` is the attempt's own. Errors: StoreClient's.
absl::Status TellSpares(rendezvous::StoreClient& store, const std::string& key_prefix,
                        bool all_steps_done);

// A spare waits here until rank 0 calls TellSpares, and returns `all_steps_done`. Whatever else
// ends the training (a worker that fails, a node that comes or goes) ends this process through its
// session. Unavailable when the store is gone, because the node that serves it is.
absl::StatusOr<bool> WaitAsSpare(rendezvous::StoreClient& store, const std::string& key_prefix);

}  // namespace convene::worker

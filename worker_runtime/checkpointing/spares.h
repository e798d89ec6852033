// Spares: ranks that the layout does not need. A spare waits, and ends when the training ends.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "rendezvous/store/store_client.h"
#include "tools/base/thread.h"
#include "worker_runtime/contract/contract.h"
#include "worker_runtime/mesh/mesh.h"
#include "worker_runtime/session/stop_token.h"

namespace convene::worker {

// PURE. The contract of a rank that trains, as if the job had no spares. Spares are the ranks from
// layout.world_size() on; the ranks of a node follow each other.
Contract WithoutSpares(const Contract& contract, const Layout& layout);

// Rank 0 calls it when the training has ended in order: all steps are done, or somebody asked for a
// stop and the work is saved. `key_prefix` is the attempt's own. Errors: StoreClient's.
absl::Status TellSpares(rendezvous::StoreClient& store, const std::string& key_prefix,
                        bool all_steps_done);

// A spare waits here until rank 0 calls TellSpares, and returns `all_steps_done`. When `stop` asks
// for a stop, the spare passes the wish on and still waits: if it ended first, its agent would
// leave, and the ranks that train would be aborted before their work is saved. Any other end of the
// training (a worker that fails, a node that comes or goes) ends this process through its session.
// Unavailable when the store is gone, because the node that serves it is.
absl::StatusOr<bool> WaitAsSpare(rendezvous::StoreClient& store, const std::string& key_prefix,
                                 const StopToken& stop);

// A spare's whole run: says that it waits, opens the job's store, and WaitAsSpare. A connection
// that breaks is made again a few times. Errors: OpenJobStore's and WaitAsSpare's.
absl::StatusOr<bool> RunAsSpare(const Contract& contract, const Layout& layout, StopToken& stop);

// TellSpares on a connection of its own. The training has ended well: spares that do not hear of it
// are only worth a warning.
void EndSpares(const Contract& contract, bool all_steps_done);

// Rank 0 learns by this whether a spare wants the training to stop. Owns a thread
// ("spares"), which the destructor ends within a quarter of a second.
class SpareWishes {
 public:
  // ResourceExhausted when no thread can be made.
  static absl::StatusOr<std::unique_ptr<SpareWishes>> Listen(
      std::shared_ptr<rendezvous::StoreClient> store, const std::string& key_prefix);
  ~SpareWishes();

  bool stop_wanted() const { return stop_wanted_; }

 private:
  SpareWishes() = default;

  std::atomic<bool> stop_wanted_{false};
  std::atomic<bool> is_over_{false};
  Thread thread_;
};

}  // namespace convene::worker

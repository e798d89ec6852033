// The process's connections to all others, over gloo's TCP transport: made once, shared by every
// group.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "rendezvous/store/store_client.h"
#include "tools/base/mutex.h"
#include "worker_runtime/comm/wait_watch.h"
#include "worker_runtime/comm/wire.h"

namespace gloo::transport {
class Context;
class Device;
}  // namespace gloo::transport

namespace convene::worker {

// Thread-safe. Owns gloo's event thread and the "comm deadline" thread. The connections close when
// the last wire and the last outside owner are gone.
class GlooMesh : public std::enable_shared_from_this<GlooMesh> {
 public:
  // Binds to `listen_host` (a name or an address that the other ranks can reach), tells the others
  // through the store under "`key_prefix`/address/<rank>" and connects to all of them. One key
  // written and world_size - 1 read per rank, of some bytes for each peer. Raises this process's
  // soft limit of open files as far as the world needs.
  //
  // DeadlineExceeded when a rank did not come within `timeout` (the text names it); Unavailable
  // when a connection failed; InvalidArgument when `listen_host` cannot be bound, or the hard limit
  // of open files is too low; the store's own errors.
  static absl::StatusOr<std::shared_ptr<GlooMesh>> Connect(int rank, int world_size,
                                                           const std::string& listen_host,
                                                           rendezvous::StoreClient& store,
                                                           const std::string& key_prefix,
                                                           absl::Duration timeout);
  ~GlooMesh();

  int rank() const { return rank_; }

  // This rank's wires in the group of `members` (global ranks, this one among them). `group_id` is
  // the same on all of them and used by no other group of this mesh that two of them share.
  // REQUIRES: 0 <= group_id < 2^16.
  std::unique_ptr<Wire> MakeWire(const std::vector<int>& members, int group_id);

 private:
  friend class GlooWire;

  GlooMesh(int rank, std::shared_ptr<gloo::transport::Device> device,
           std::shared_ptr<gloo::transport::Context> context);

  // Closes every connection; waits of all groups, here and at the peers, end with Unavailable.
  // `reason` is not OK; the first one is kept.
  void HangUp(const absl::Status& reason);
  absl::Status hang_up_reason();  // OK: it has not hung up

  const int rank_;
  const std::shared_ptr<gloo::transport::Device> device_;
  const std::shared_ptr<gloo::transport::Context> context_;
  WaitWatch watch_;
  Mutex mutex_;
  absl::Status hang_up_reason_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace convene::worker

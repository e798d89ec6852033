// Messages of one group over a GlooMesh.
#pragma once

#include <array>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "tools/base/mutex.h"
#include "worker_runtime/comm/gloo_mesh.h"
#include "worker_runtime/comm/wait_watch.h"
#include "worker_runtime/comm/wire.h"

namespace gloo::transport {
class UnboundBuffer;
}  // namespace gloo::transport

namespace convene::worker {

// See Wire. A message's tag is its gloo slot: | group 16 | lane 1 | sequence 15 | size in bytes 32
// |. Gloo pairs sends and receives of equal slots only, in order, so equal low bits of a sequence
// cannot meet: 2^15 messages of one size between two ranks are never open at once.
class GlooWire final : public Wire {
 public:
  GlooWire(std::shared_ptr<GlooMesh> mesh, std::vector<int> members, int group_id);
  ~GlooWire() override;

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(members_.size()); }
  int GlobalRank(int peer) const override { return members_[peer]; }
  absl::Status CheckOpen() override;
  absl::Status PostReceive(int peer, const MessageTag& tag, void* data) override;
  absl::Status PostSend(int peer, const MessageTag& tag, const void* data) override;
  absl::Status AwaitReceive(int peer, Lane lane, const WaitLimit& limit) override;
  absl::Status AwaitSend(int peer, Lane lane, const WaitLimit& limit) override;
  void Withdraw(const absl::Status& hang_up) override;
  void Abort(const absl::Status& why) override;

 private:
  using Buffer = gloo::transport::UnboundBuffer;
  // Gloo counts completions per buffer, so each separate wait has a buffer of its own.
  struct Buffers {
    std::unique_ptr<Buffer> receive;
    std::unique_ptr<Buffer> send;
  };
  struct Peer {
    std::array<Buffers, 2> lanes;
  };

  Buffers& BuffersOf(int peer, Lane lane) { return peers_[peer].lanes[static_cast<size_t>(lane)]; }
  uint64_t SlotOf(const MessageTag& tag) const;
  // Gloo's words about a peer; or why this rank hung up, which breaks every connection.
  absl::Status Broken(int peer, const std::exception& error) const;
  std::string NameOf(int peer) const;
  absl::Status Await(int peer, Buffer& buffer, bool receive, const WaitLimit& limit);

  const std::shared_ptr<GlooMesh> mesh_;
  const std::vector<int> members_;  // global ranks
  const int rank_;
  const uint64_t group_id_;

  WaitWatch::Place place_;
  // Used by the caller's thread only. Abort and the watch reach a buffer through waiting_* while
  // the caller waits for it.
  std::vector<Peer> peers_;

  Mutex mutex_;
  Buffer* waiting_receive_ ABSL_GUARDED_BY(mutex_) = nullptr;
  Buffer* waiting_send_ ABSL_GUARDED_BY(mutex_) = nullptr;
  absl::Status aborted_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace convene::worker

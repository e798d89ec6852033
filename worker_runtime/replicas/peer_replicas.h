// Copies of each rank's shard in the memory of its own node and of other nodes, made beside the
// training, so that a job goes on after the loss of a worker or a node without a file.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "tools/base/cgroup_limits.h"
#include "worker_runtime/checkpoint/manifest.h"
#include "worker_runtime/checkpoint/state_source.h"
#include "worker_runtime/checkpointing/save_restore.h"
#include "worker_runtime/comm/collective.h"
#include "worker_runtime/device/device.h"
#include "worker_runtime/device/host_queue.h"
#include "worker_runtime/replicas/choose_copies.h"
#include "worker_runtime/replicas/memory_state.h"
#include "worker_runtime/replicas/node_memory.h"
#include "worker_runtime/replicas/untouched_memory.h"
#include "worker_runtime/shard/sharded_optimizer.h"

namespace convene::worker {

// Every rank has one, and makes the same calls. Two copies of each shard alternate in each place:
// one is overwritten only when all ranks have told that the other one stands whole everywhere. So
// from the first stage on there is a whole state at any moment, for the loss of all workers, and of
// as many nodes as there are replicas.
//
// Not thread-safe. The thread "replicas" sends and receives; nobody else uses `world` meanwhile.
class PeerReplicas final : public StatesInMemory {
 public:
  struct Options {
    std::string memory_path;  // Contract::memory_path
    int replicas = 0;         // of each shard, on other nodes
    int64_t every = 1;        // steps
    int64_t epoch = 0;        // a later start of the job has a greater one; below 2^30
    int local_rank = 0;
    int local_world_size = 1;
    int node = 0;          // Contract::group_rank
    std::string topology;  // the node's label
    // That the job may have; 0: those of today. While there are fewer, fewer replicas will do.
    int max_nodes = 0;
    absl::Duration timeout = absl::Minutes(10);  // of each wait for the device
    // Host memory that is free, and the part of it that this process will take for other things:
    // what it has planned and not used yet. Tests have their own.
    std::function<int64_t()> available_bytes = [] { return AvailableMemoryBytes(); };
    std::function<int64_t()> promised_bytes = UntouchedBytes;
  };

  // Borrows `world` and `device`. The same error on all ranks: FailedPrecondition where a rank has
  // no memory of its node, or where the job never has as many other nodes as replicas; those of
  // NodeMemory::Open; the collective's.
  static absl::StatusOr<std::unique_ptr<PeerReplicas>> Create(const Options& options,
                                                              Collective& world, Device& device);
  // Gives up copies that are under way: aborts `world`.
  ~PeerReplicas() override;

  absl::StatusOr<std::unique_ptr<StateSource>> OpenNext() override;

  // The ranks have loaded a state, and go on with it: OpenNext's last one, or another. All
  // other memory of the nodes is given back. Errors: NodeMemory::Free's.
  absl::Status BeginGeneration(bool is_from_memory);

  // Whether a stage is due after this step: each `every` steps, and before the first one.
  bool IsDue(int64_t step) const { return is_empty() || step % options_.every == 0; }
  // Nothing was staged in this generation.
  bool is_empty() const { return stages_ == 0; }
  // Between two steps: copies the state as it is now, which `info` describes, and returns; the
  // thread does the rest. Waits for the stage before it first. Nothing where that was of this step.
  // Errors: the collective's, the device's; ResourceExhausted, on all ranks, where a node has too
  // little memory (the first stage of a generation alone takes any).
  absl::Status Stage(const CheckpointInfo& info, CheckpointedState& state);
  // Waits until the last stage stands whole everywhere. Errors: the collective's.
  absl::Status Finish();

  // A line for the person who watches the run. REQUIRES: Stage was called.
  std::string Description() const;

 private:
  // The places of one shard's copies on this node.
  struct Slot {
    int sender = 0;
    std::array<MappedWindow, 2> windows;
    std::vector<std::byte> head;  // of the copy that arrives; empty for the own shard
  };
  struct Sizes {
    int64_t data_offset = 0;
    int64_t data_bytes = 0;
    double content = 0;          // NumberShards
    int64_t promised_bytes = 0;  // Options
  };

  PeerReplicas(const Options& options, Collective& world, Device& device,
               std::unique_ptr<NodeMemory> memory);
  // Of this node's ranks of today and of those that it has lost: this rank's share.
  std::vector<int64_t> Windows() const;
  // Where the ranks are.
  absl::Status FindPlaces();
  // Finds the ranks that have the same shard, and the copies that each rank keeps.
  void PlaceCopies(const std::vector<Sizes>& sizes);
  void MakeIndex(const std::vector<PieceToWrite>& pieces, const CheckpointInfo& info);
  absl::Status TakeMemory();
  absl::Status ReserveWindows(const std::vector<Sizes>& sizes);
  absl::StatusOr<std::vector<Sizes>> GatherSizes();
  absl::Status CheckMemory(const std::vector<Sizes>& sizes);
  void SealOwn(const MappedWindow& own);
  absl::Status Replicate(int half);
  absl::Status Exchange(int half);
  // Other nodes that have this rank's shard.
  int CopiesElsewhere() const;

  const Options options_;
  Collective& world_;
  Device& device_;
  const std::unique_ptr<NodeMemory> memory_;
  std::vector<RankPlace> places_;   // [rank]
  std::vector<int> shard_of_rank_;  // NumberShards
  int shards_ = 0;
  std::vector<std::vector<int>> holders_;  // [sender]: PlaceReplicas
  std::optional<RefusedState> opened_;     // the state that OpenNext gave last
  int64_t generation_ = 0;
  std::vector<int64_t> old_windows_;  // of the state that this generation began with
  int64_t stages_ = 0;                // begun in this generation
  int64_t staged_step_ = -1;
  Manifest index_;  // of the own shard
  Sizes own_sizes_;
  std::vector<int64_t> piece_offsets_;  // in the window's data
  std::optional<Slot> own_;             // of the own shard; none: another rank of the node keeps it
  std::vector<Slot> slots_;             // of shards that others send
  absl::Status result_;                 // the thread's, until Finish
  HostQueue queue_{"replicas"};         // ends first: what it still holds uses the others
};

}  // namespace convene::worker

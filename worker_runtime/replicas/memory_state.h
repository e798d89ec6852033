// The copies in the nodes' memory, seen by all ranks: what they hold, and a run's state read from
// them.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "worker_runtime/checkpoint/manifest.h"
#include "worker_runtime/checkpoint/reshard_plan.h"
#include "worker_runtime/checkpoint/state_source.h"
#include "worker_runtime/comm/collective.h"
#include "worker_runtime/device/stream.h"
#include "worker_runtime/replicas/choose_copies.h"
#include "worker_runtime/replicas/node_memory.h"

namespace convene::worker {

// The tensor and the part of it.
std::string NameOfPiece(const TensorPiece& piece);

// All ranks call it. The copies of all nodes, the same on all ranks: each rank tells those of its
// `windows`. Errors: the collective's.
absl::StatusOr<std::vector<HeldCopy>> GatherCopies(const NodeMemory& memory,
                                                   absl::Span<const int64_t> windows, int node,
                                                   Collective& world);

// A whole state. All ranks make each call of it at the same time; a call takes one chunk of memory
// (16 MiB at most) beside the pieces. A rank reads what its own node holds there, and takes the
// rest from ranks of other nodes, pair by pair. Of each shard one copy tells all ranks the index,
// with the checksums. Another copy may differ from it in the last bits, where the training itself
// kept both and their machines round otherwise: a chunk without its checksum is read again from the
// copy that told the index. So all ranks read the same bytes.
class MemoryState final : public StateSource {
 public:
  // `memory` and `world` are borrowed. DataLoss, on all ranks, where an index is damaged; the
  // collective's errors.
  static absl::StatusOr<std::unique_ptr<MemoryState>> Open(WholeState state, NodeMemory& memory,
                                                           int node, Collective& world);

  const std::string& name() const override { return name_; }
  const CheckpointInfo& info() const override { return info_; }
  // Checks each chunk's checksum: DataLoss where the copy that told the index does not have it
  // either. The collective's errors end all ranks; after any other one of
  // this rank it still serves the others.
  absl::Status Read(const std::vector<PieceToRead>& pieces) const override;

 private:
  // The part of a chunk that one rank reads: copies [begin, end) of its plan.
  struct Want {
    int chunk = 0;
    size_t begin = 0, end = 0;
  };
  class Reading;

  MemoryState(WholeState state, NodeMemory& memory, int node, Collective& world);
  // `known`: the pieces of the shards before it.
  absl::Status AddIndex(int shard, absl::string_view text, std::unordered_set<std::string>* known);
  // [rank]: the chunks that each wants of this one, from what each wants of the others.
  absl::StatusOr<std::vector<std::vector<int>>> ExchangeWants(
      const std::vector<std::vector<Want>>& wants) const;
  // The chunk as this node holds it, checked. DataLoss.
  absl::StatusOr<ConstElements> Load(int chunk, int64_t window) const;
  absl::StatusOr<ConstElements> Checked(int chunk, const void* data) const;

  const WholeState state_;
  NodeMemory& memory_;
  const int node_;
  Collective& world_;
  const std::string name_;
  CheckpointInfo info_;
  // By chunk.
  std::vector<TensorPiece> pieces_;
  std::vector<ChunkPlace> places_;
  std::vector<int> shards_;
  mutable std::map<int64_t, NodeMemory::Copy> open_;  // by window
};

}  // namespace convene::worker

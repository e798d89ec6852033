// Sums of the gradients of slices that several tensor-parallel ranks hold, of which each makes a
// part (ParameterSlice::tp_copies): key and value heads, of which there are fewer than ranks, and
// the weight of the norms of all heads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "worker_runtime/comm/collective.h"
#include "worker_runtime/device/arena.h"
#include "worker_runtime/device/device.h"
#include "worker_runtime/shard/flat_shard.h"
#include "worker_runtime/shard/placement.h"

namespace convene::worker {

// Every copy of a slice gets the sum over all copies, the same bits, so that all of them are
// updated alike.
//
// The ranks with copies of one slice have no group of their own. All tensor-parallel ranks add up a
// buffer with a place for each different slice, in which a rank fills its slice's place and leaves
// zeros in the others: nothing more to connect, and no word of a model's heads in the mesh. That
// carries the key and value gradients of all heads once a step, where every microbatch carries
// several activations over the same group.
//
// It works on what a rank keeps of the sums over dp: all tensor-parallel ranks of one data-parallel
// rank keep the same places of the flat buffer. Not thread-safe.
class CopiedSlices {
 public:
  // Declares its buffer in `arena`; the references are borrowed.
  CopiedSlices(const Placement& placement, const FlatShard& shard, Collective& tp, Device& device,
               Arena& arena);

  // Queued in compute(). `gradients_of`: of a part of this rank's shard, summed over all
  // data-parallel ranks. Errors: the collective's.
  absl::Status Sum(absl::FunctionRef<absl::Span<float>(const ShardPart&)> gradients_of);

  // Whether Sum changes gradients of the part, which is one of the shard's.
  bool HasPiecesIn(const ShardPart& part) const;

 private:
  // A piece of one part of the shard that lies in copied slices.
  struct Piece {
    const ShardPart* part;
    int64_t begin = 0;  // in the part
    int64_t count = 0;
    int copies = 1;
  };

  std::vector<Piece> PiecesOf(const Placement& placement, const FlatShard& shard) const;
  // How many different slices there are, counted over tp.
  int64_t PlaceCount(int copies) const { return std::max(1, tp_.size() / copies); }
  int64_t PieceMax(int copies) const;
  // Elements that the longest run of copied slices wants of the buffer: the same on all ranks.
  int64_t LongestPlaces(const Placement& placement) const;

  Collective& tp_;
  Device& device_;
  const std::vector<Piece> pieces_;
  const ArenaBlock<float> places_;  // (PlaceCount, piece) of the one that wants most on any rank
};

}  // namespace convene::worker

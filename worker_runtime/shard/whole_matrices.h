// Matrices that a rule has to change as wholes (MatrixRule), and that lie here cut: by tensor
// parallelism, and by the shards of data-parallel ranks. Each matrix has one owner among all ranks
// that hold a part of it or a copy. The parts travel to it, it changes the matrix, and the parts of
// the result travel back.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "worker_runtime/device/arena.h"
#include "worker_runtime/device/device.h"
#include "worker_runtime/device/elements.h"
#include "worker_runtime/optimizer/update_rule.h"
#include "worker_runtime/shard/bucket_store.h"
#include "worker_runtime/shard/flat_shard.h"
#include "worker_runtime/shard/matrix_memory.h"

namespace convene::worker {

// Matrices that one data-parallel rank changes at once, each of its tensor-parallel ranks one.
struct MatrixWave {
  std::vector<int> matrices;  // their numbers
  int owner = 0;
};

// PURE. The waves of matrices that cost so much, of which the most expensive share a wave, and
// whose owners have about the same to do: the next expensive wave goes to whoever has the least
// (Graham 1969). All ranks get the same answer. REQUIRES: wave_size and owners are above 0.
std::vector<MatrixWave> WavesOf(absl::Span<const double> costs, int wave_size, int owners);

// Not thread-safe. Borrows the references that its constructor takes.
//
// All is queued in compute(), and nothing is on its way in communication() then. No rank adds two
// numbers: a sum over ranks has zeros from all but one of them, so it is exact, and the result has
// the same bits on all ranks and in every layout in which the directions have.
class WholeMatrices {
 public:
  // Declares its memory in `arena`, all of it in the type of the parameters but a product in fp32.
  // `rule`: null where nothing is to be changed as a whole; then it declares nothing.
  WholeMatrices(BucketStore& store, const MatrixRule* rule, Device& device, Arena& arena);

  // Call it once the arena is built.
  void Bind();

  // In this rank's part of the bucket the gradients of matrices (ParameterSlice::is_matrix) are
  // directions, and become what the rule makes of them. Gradients of other elements are lost. All
  // ranks call it for all buckets, in one order. Errors: the collective's.
  absl::Status Transform(size_t bucket_index);

 private:
  // At most tp matrices: each tensor-parallel rank changes one of them.
  absl::Status TransformWave(absl::Span<const PlacedParameter* const> matrices, Elements bucket,
                             int64_t bucket_begin);
  void CopySlice(const PlacedParameter& matrix, Elements slice, Elements whole, bool to_whole);

  BucketStore& store_;
  const MatrixRule* const rule_;
  Device& device_;
  const std::vector<std::vector<const PlacedParameter*>> matrices_;  // by bucket
  const std::vector<std::vector<MatrixWave>> waves_;                 // by bucket
  const MatrixMemory memory_;
  const int64_t slot_;  // memory_'s
  const ArenaBlock<char> bucket_;
  const ArenaBlock<char> wave_;  // (tp, slot_)
  const ArenaBlock<char> square_;
  const ArenaBlock<float> product_;  // (slot_)
  const ArenaBlock<double> sum_of_squares_;
  const ArenaBlock<uint8_t> flags_;
  const ArenaBlock<char> workspace_;
};

}  // namespace convene::worker

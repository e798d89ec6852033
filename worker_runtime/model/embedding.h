// The first unit: tokens to the residual stream, with the vocabulary split over tensor-parallel
// ranks, and the table of learned positions too where the family has one. The tables' gradients
// belong to the input half of a backward pass: they are all that this half has to do here, no rank
// waits for them, and put off they would need memory for their input.
#pragma once

#include "absl/container/inlined_vector.h"
#include "worker_runtime/device/arena.h"
#include "worker_runtime/model/unit.h"
#include "worker_runtime/ops/token_positions.h"
#include "worker_runtime/parallel/vocabulary.h"

namespace convene::worker {

struct EmbeddingShape {
  int batch = 0;
  int length = 0;  // tokens of a row on this rank
  int hidden = 0;
  VocabularySlice vocabulary;
  VocabularySlice positions;  // empty: rotary
  TokenRuns runs;             // of this rank's tokens
  float scale = 1;            // of the output

  int rows() const { return batch * length; }
};

template <typename T>
class Embedding final : public Unit<T> {
 public:
  // Borrows the arena.
  Embedding(const EmbeddingShape& shape, Arena& arena);

  ScratchSizes scratch(DeviceKind device) const override;
  absl::Status Forward(const Pass<T>& pass, T* target, Flow<T>& flow) override;
  absl::Status Backward(const Pass<T>& pass, T* gradient) override;

 private:
  // The tables and their tensors' roles, with the numbers of the microbatch's rows. No heap.
  struct Tables {
    absl::InlinedVector<SplitTable<T>, 2> tables;
    absl::InlinedVector<int, 2> roles;
  };
  Tables TablesOf(const Pass<T>& pass) const;
  // Fills positions_ with those of the cache's runs.
  void CachedPositions(const Pass<T>& pass) const;
  void Scale(int64_t count, T* x, Stream& stream) const;

  const EmbeddingShape shape_;
  const ArenaBlock<int32_t> positions_;  // (rows)
};

}  // namespace convene::worker

// The first unit: tokens to the residual stream, with the vocabulary split over tensor-parallel
// ranks. The table's gradient belongs to the input half of a backward pass: it is all that this
// half has to do here, no rank waits for it, and put off it would need memory for its input.
#pragma once

#include "worker_runtime/model/unit.h"
#include "worker_runtime/parallel/vocabulary.h"

namespace convene::worker {

template <typename T>
class Embedding final : public Unit<T> {
 public:
  Embedding(int rows, int hidden, const VocabularySlice& vocabulary)
      : rows_(rows), hidden_(hidden), vocabulary_(vocabulary) {}

  ScratchSizes scratch(DeviceKind device) const override;
  absl::Status Forward(const Pass<T>& pass, T* target, Flow<T>& flow) override;
  absl::Status Backward(const Pass<T>& pass, T* gradient) override;

 private:
  const int rows_;
  const int hidden_;
  const VocabularySlice vocabulary_;
};

}  // namespace convene::worker

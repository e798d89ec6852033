// The door between arithmetic and parameters: a unit gets its weights when it needs them and a
// place for its gradients, and says when these are done. A class behind this interface decides
// which rank keeps which part, and when ranks reduce and gather it.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker_runtime/device/arena.h"
#include "worker_runtime/parallel/linear.h"

namespace convene::worker {

// Units and their tensors are called by their places in the rank's list of UnitSpecs. Calls come in
// the order of queueing, from the thread that queues ops in compute(). Not thread-safe.
class UnitStore {
 public:
  virtual ~UnitStore() = default;

  // The unit's weights, one pointer a tensor, in the type of the parameters. Ops that compute() is
  // given from now on may read them. Errors: the collective's.
  virtual absl::StatusOr<absl::Span<const void* const>> Acquire(int unit) = 0;
  // compute() holds all ops of the pass for which the unit's weights were acquired.
  virtual void Release(int /*unit*/) {}
  // The unit is the next one to be acquired. Call it before the ops of the current unit are queued:
  // the weights may come beside them. Errors: the collective's.
  virtual absl::Status Prefetch(int /*unit*/) { return absl::OkStatus(); }

  // Where the ops of one pass put the gradient of one tensor. `is_first`: it is the step's first
  // pass that makes this gradient in this unit. The first pass overwrites the place, unless another
  // unit has the same tensor and came before; later passes add to it. A store that keeps whole
  // gradients answers by the arguments alone, so the ops may be captured once and launched in every
  // step. A store that keeps shards gives other places: call it in every pass.
  virtual WeightGradient Gradient(int unit, int tensor, bool is_first) = 0;

  // The gradients of units before `unit` that lie idle, side by side: from the end of one step's
  // update until Gradient is called for one of those units in the next step, in compute()'s order.
  // Until then other code may write there, in compute(). No other stream may read gradients after
  // FinishReducing. A store without idle gradients answers with an empty block; all other blocks
  // begin at one place. May be called at any time.
  virtual ArenaBlock<float> IdleGradients(int /*unit*/) const { return {}; }

  // A backward pass of the unit is queued; `is_last`: no other one of this step adds to its
  // gradients. Errors, which end the step: the collective's.
  virtual absl::Status GradientsDone(int unit, bool is_last) = 0;
};

}  // namespace convene::worker

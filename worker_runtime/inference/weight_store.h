// A unit store of weights alone: they are read once, and no pass makes a gradient.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker_runtime/checkpoint/state_source.h"
#include "worker_runtime/device/arena.h"
#include "worker_runtime/device/device.h"
#include "worker_runtime/model/parameters.h"
#include "worker_runtime/shard/placement.h"
#include "worker_runtime/shard/unit_store.h"

namespace convene::worker {

// Not thread-safe.
class WeightStore : public UnitStore {
 public:
  // Declares the weights, in the type `dtype`, in the arena. Borrows the device.
  WeightStore(const std::vector<UnitSpec>& units, DType dtype, Device& device, Arena& arena);

  // Call it once the arena is built, and before the first pass. In bf16 routers' biases are centred
  // (CentreBias). Errors: the source's;
  // DeadlineExceeded and others of the device.
  absl::Status Load(const StateSource& source);

  absl::StatusOr<absl::Span<const void* const>> Acquire(int unit) override;
  WeightGradient Gradient(int unit, int tensor, bool is_first) override;
  absl::Status GradientsDone(int unit, bool is_last) override;

 private:
  // Reads routers' biases again, to their places in `weights`.
  absl::Status CentreBiases(const StateSource& source, char* weights) const;

  const Placement placement_;
  const DType dtype_;
  Device& device_;
  const ArenaBlock<char> memory_;
  std::vector<std::vector<const void*>> weights_;  // by unit
};

}  // namespace convene::worker

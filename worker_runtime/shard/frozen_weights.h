// The parameters of a store that never change: they are set once, and have neither gradients nor
// an optimizer's state nor a place in checkpoints.
#pragma once

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "worker_runtime/device/device.h"
#include "worker_runtime/model/parameters.h"
#include "worker_runtime/shard/bucket_store.h"

namespace convene::worker {

// Weights are made on the host in pieces of so many elements: few, since malloc keeps what it gave.
inline constexpr int64_t kPieceOfWeights = int64_t{1} << 18;

// Fills `values` with elements [first, first + values.size()) of the slice, row-major.
using MakeWeights =
    absl::FunctionRef<void(const ParameterSlice& slice, int64_t first, absl::Span<float> values)>;

// A cheap value. Not thread-safe. Borrows the store and the device.
class FrozenWeights {
 public:
  FrozenWeights(BucketStore& store, Device& device, absl::Duration timeout)
      : store_(&store), device_(&device), timeout_(timeout) {}

  // ShardedOptimizer::FillWeights and its PublishMasters, of the store. In bf16 routers' biases are
  // centred (CentreBias).
  absl::Status Fill(MakeWeights make) const;
  absl::Status Publish() const;

 private:
  BucketStore* store_;
  Device* device_;
  absl::Duration timeout_;
};

}  // namespace convene::worker

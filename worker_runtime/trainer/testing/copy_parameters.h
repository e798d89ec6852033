// The parameters that an engine's next pass would compute with.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/device/device.h"
#include "worker_runtime/device/dtype.h"
#include "worker_runtime/shard/bucket_store.h"
#include "worker_runtime/trainer/engine.h"

namespace convene::worker {

// A copy of all parameters, in host memory: of each of stores(), behind each other, as its
// placement() says, (placement().flat_count) of its type, with zeros between them. `device`: the
// engine's. All ranks of a data-parallel group call it. Errors: the collective's, the device's.
// REQUIRES: no step is in flight.
inline absl::StatusOr<std::vector<char>> CopyParameters(Engine& engine, Device& device) {
  const int64_t element_bytes = SizeOf(engine.store().dtype());
  int64_t count = 0;
  for (const BucketStore* const store : engine.stores()) count += store->placement().flat_count;
  std::vector<char> bytes(count * element_bytes);
  char* of_store = bytes.data();
  for (BucketStore* const store : engine.stores()) {
    const Placement& placement = store->placement();
    for (int unit = 0; unit < static_cast<int>(placement.units.size()); ++unit) {
      CONVENE_ASSIGN_OR_RETURN(const absl::Span<const void* const> weights, store->Acquire(unit));
      for (size_t i = 0; i < weights.size(); ++i) {
        const Placement::Tensor& tensor = placement.tensors[placement.units[unit].tensors[i]];
        device.Copy(weights[i], of_store + tensor.begin * element_bytes,
                    tensor.count * element_bytes, device.compute());
      }
      store->Release(unit);
    }
    of_store += placement.flat_count * element_bytes;
  }
  CONVENE_RETURN_IF_ERROR(device.Synchronize(absl::Minutes(1)));
  return bytes;
}

}  // namespace convene::worker

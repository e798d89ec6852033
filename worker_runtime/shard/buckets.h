// PURE. How the units of a store become buckets.
#pragma once

#include <cstdint>
#include <vector>

#include "worker_runtime/mesh/mesh.h"

namespace convene::worker {

// The fewest elements of a bucket: few enough that most of a large model's reductions run beside
// its backward pass, and most of the host's update of an offloaded state beside the next forward
// pass; enough that a ring of dp ranks has a message worth its latency. It is `asked`, or where
// that is 0 Megatron-LM's choice (megatron/core/distributed/distributed_data_parallel.py).
int64_t BucketCountMin(const Layout& layout, int64_t asked = 0);

// The `bucket_count_min` that makes a bucket for each unit.
inline constexpr int64_t kUnitBuckets = 0;

// Tells which units begin a bucket. `borders`: where each unit's elements begin, in order, and
// where the last ones end. Buckets are cut from the end, as the backward pass goes. The first
// bucket gets the rest, which may be small: nothing runs beside the reduction of the last
// gradients, nor beside the gather of the first parameters.
std::vector<bool> CutIntoBuckets(const std::vector<int64_t>& borders, int64_t bucket_count_min);

}  // namespace convene::worker

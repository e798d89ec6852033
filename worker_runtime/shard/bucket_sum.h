// The sum of one bucket's gradients over the ranks that share a copy of the optimizer's state, in
// fp32 or, for half the traffic, in bf16. (Where gradients are sharded, the sum over the copies of
// a shard is GradientShards', once a step and in fp32.)
#pragma once

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "worker_runtime/comm/collective.h"
#include "worker_runtime/device/arena.h"
#include "worker_runtime/device/elements.h"
#include "worker_runtime/device/stream.h"
#include "worker_runtime/shard/placement.h"

namespace convene::worker {

// Not thread-safe. Borrows the references that its constructor takes.
class BucketSum {
 public:
  // `dp`: the ranks that share one copy of the optimizer's state; `dp_replicate`: the ranks that
  // keep a copy of this rank's shard. Declares the memory of the wire in `arena`, as large as the
  // largest bucket, where `dtype` is kBFloat16 and there is more than one rank.
  BucketSum(const Placement& placement, Collective& dp, Collective& dp_replicate, DType dtype,
            Arena& arena);

  // Queues the sum of a whole bucket. Afterwards its part number dp.rank() is the sum over `dp`,
  // and over dp_replicate too where `of_all`; the rest is unspecified. Sums run in one stream, one
  // after the other: the wire's memory needs no event. Errors: the collective's.
  absl::Status Queue(absl::Span<float> bucket, bool of_all, Stream& stream);

 private:
  absl::Status Sum(Elements bucket, bool of_all, Stream& stream);
  Elements Part(Elements bucket) const {
    const size_t count = bucket.count / dp_.size();
    return bucket.Slice(count * dp_.rank(), count);
  }

  Collective& dp_;
  Collective& dp_replicate_;
  const ArenaBlock<BFloat16> wire_;
};

}  // namespace convene::worker

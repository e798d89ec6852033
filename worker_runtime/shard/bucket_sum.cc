#include "worker_runtime/shard/bucket_sum.h"

#include <algorithm>

#include "tools/base/status_macros.h"
#include "worker_runtime/ops/elementwise.h"

namespace convene::worker {
namespace {

int64_t LargestBucket(const Placement& placement) {
  int64_t largest = 0;
  for (const ParameterBucket& bucket : placement.buckets) largest = std::max(largest, bucket.count);
  return largest;
}

}  // namespace

BucketSum::BucketSum(const Placement& placement, Collective& dp, Collective& dp_replicate,
                     DType dtype, Arena& arena)
    : dp_(dp),
      dp_replicate_(dp_replicate),
      wire_(arena.Declare<BFloat16>("gradients on the wire",
                                    dtype == DType::kBFloat16 && dp.size() * dp_replicate.size() > 1
                                        ? LargestBucket(placement)
                                        : 0,
                                    ArenaPart::kCollective)) {}

absl::Status BucketSum::Sum(Elements bucket, bool of_all, Stream& stream) {
  CONVENE_RETURN_IF_ERROR(dp_.ReduceScatter(bucket, ReduceOp::kSum, stream));
  return of_all ? dp_replicate_.AllReduce(Part(bucket), ReduceOp::kSum, stream) : absl::OkStatus();
}

// Rounding and widening run in the same stream: they use memory bandwidth that products leave free.
absl::Status BucketSum::Queue(absl::Span<float> bucket, bool of_all, Stream& stream) {
  if (wire_.size() == 0 || (dp_.size() == 1 && !of_all)) return Sum(bucket, of_all, stream);
  const Elements wire = wire_.span().subspan(0, bucket.size());
  ToBFloat16(static_cast<int64_t>(bucket.size()), bucket.data(), At(wire_), stream);
  CONVENE_RETURN_IF_ERROR(Sum(wire, of_all, stream));
  const absl::Span<BFloat16> summed = Part(wire).As<BFloat16>();
  ToFloat(static_cast<int64_t>(summed.size()), summed.data(), Part(bucket).As<float>().data(),
          stream);
  return absl::OkStatus();
}

}  // namespace convene::worker

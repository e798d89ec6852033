#include "worker_runtime/bench/expected.h"

#include <algorithm>

#include "tools/base/check.h"

namespace convene::worker {
namespace {

// A prime: a shard that arrives in another's place is seen, whatever the shards' length.
constexpr int64_t kPeriod = 251;

bool IsReduction(CollectiveKind kind) {
  return kind == CollectiveKind::kAllReduce || kind == CollectiveKind::kReduceScatter;
}

}  // namespace

ExpectedResult::ExpectedResult(CollectiveKind kind, ReduceOp op, DType dtype, int root, int ranks,
                               int64_t count)
    : kind_(kind),
      root_(root),
      ranks_(ranks),
      count_(count),
      period_(IsReduction(kind) && op == ReduceOp::kSum && dtype == DType::kBFloat16 ? 2
                                                                                     : kPeriod) {
  if (!IsReduction(kind)) return;
  reduced_.assign(period_, 0);
  for (int64_t index = 0; index < period_; ++index) {
    for (int rank = 0; rank < ranks; ++rank) {
      const float value = Given(rank, index);
      reduced_[index] =
          op == ReduceOp::kSum ? reduced_[index] + value : std::max(reduced_[index], value);
    }
  }
}

ExpectedResult::Part ExpectedResult::FilledPart(int rank) const {
  // In a group of one Shift moves nothing.
  if (kind_ == CollectiveKind::kShift && ranks_ == 1) return {};
  if (kind_ != CollectiveKind::kReduceScatter) return {0, count_};
  const int64_t shard = count_ / ranks_;
  return {rank * shard, (rank + 1) * shard};
}

float ExpectedResult::Right(int rank, int64_t index) const {
  const int64_t shard = count_ / ranks_;
  switch (kind_) {
    case CollectiveKind::kAllReduce:
    case CollectiveKind::kReduceScatter:
      return reduced_[index % period_];
    case CollectiveKind::kAllGather:
      return Given(static_cast<int>(index / shard), index);
    case CollectiveKind::kAllToAll:
      return Given(static_cast<int>(index / shard), rank * shard + index % shard);
    case CollectiveKind::kBroadcast:
      return Given(root_, index);
    case CollectiveKind::kShift:
      return Given((rank + ranks_ - 1) % ranks_, index);
    case CollectiveKind::kAllToAllV:
    case CollectiveKind::kBarrier:
      break;
  }
  CONVENE_CHECK(false);
}

}  // namespace convene::worker

#include "worker_runtime/shard/flat_shard.h"

#include <algorithm>
#include <iterator>

#include "absl/algorithm/container.h"
#include "tools/base/check.h"
#include "worker_runtime/ops/elementwise.h"

namespace convene::worker {

std::vector<uint8_t> MakeParameterFlags(const Placement& placement, const FlatShard& shard,
                                        bool speaks_for_shard) {
  static_assert(kParameterAlignment == kFlagBlock);
  std::vector<uint8_t> flags(shard.count / kFlagBlock);
  for (const ShardSegment& segment : shard.segments) {
    const PlacedParameter& slice = placement.parameters[segment.parameter];
    const bool counts = slice.owned && speaks_for_shard && !slice.balances;
    const int flag = (slice.decayed ? kDecayed : 0) | (counts ? kOwned : 0);
    const int64_t begin = segment.shard_begin;
    for (int64_t block = begin / kFlagBlock; block * kFlagBlock < begin + segment.count; ++block) {
      // A block is shared only by the parts of one fused matrix, which have the same flags.
      CONVENE_CHECK(flags[block] == 0 || flags[block] == flag);
      flags[block] = static_cast<uint8_t>(flag);
    }
  }
  return flags;
}

std::vector<MatrixRun> MatrixRuns(const Placement& placement, const FlatShard& shard) {
  std::vector<MatrixRun> runs;
  for (size_t i = 0; i < shard.parts.size(); ++i) {
    const ShardPart& part = shard.parts[i];
    const int index = static_cast<int>(i);
    const int64_t end = part.shard_begin + part.count;
    runs.push_back({.part = index, .shard_begin = part.shard_begin, .count = part.count});
    for (const ShardSegment& segment : shard.segments) {
      if (segment.part != index) continue;
      const bool is_matrix = placement.parameters[segment.parameter].is_matrix();
      if (is_matrix == runs.back().of_matrices) continue;
      // A tensor begins at a multiple; so does a segment that is not the first of its tensor.
      const int64_t begin = segment.shard_begin;
      CONVENE_CHECK(begin % kParameterAlignment == 0);
      runs.back().count = begin - runs.back().shard_begin;
      if (runs.back().count == 0) runs.pop_back();
      runs.push_back({index, begin, end - begin, is_matrix});
    }
  }
  for (size_t i = 1; i < runs.size(); ++i) {
    const MatrixRun& before = runs[i - 1];
    runs[i].rest_before = before.rest_before + (before.of_matrices ? 0 : before.count);
  }
  return runs;
}

int64_t RestBefore(absl::Span<const MatrixRun> runs, int64_t shard_begin) {
  const auto next = absl::c_upper_bound(runs, shard_begin, [](int64_t begin, const MatrixRun& run) {
    return begin < run.shard_begin;
  });
  if (next == runs.begin()) return 0;
  const MatrixRun& run = *std::prev(next);
  return run.rest_before + (run.of_matrices ? 0 : shard_begin - run.shard_begin);
}

FlatShard MakeFlatShard(const Placement& placement, int dp_size, int dp_rank) {
  FlatShard shard;
  for (const ParameterBucket& bucket : placement.buckets) {
    CONVENE_CHECK(bucket.count % (dp_size * kParameterAlignment) == 0);
    const int64_t count = bucket.count / dp_size;
    shard.parts.push_back({.bucket = bucket,
                           .flat_begin = bucket.begin + count * dp_rank,
                           .shard_begin = shard.count,
                           .count = count});
    shard.count += count;
  }
  for (size_t p = 0; p < shard.parts.size(); ++p) {
    const ShardPart& part = shard.parts[p];
    for (size_t i = 0; i < placement.parameters.size(); ++i) {
      const PlacedParameter& slice = placement.parameters[i];
      const int64_t begin = std::max(slice.flat_offset, part.flat_begin);
      const int64_t end = std::min(slice.flat_offset + slice.count(), part.flat_begin + part.count);
      if (begin >= end) continue;
      shard.segments.push_back({.parameter = static_cast<int>(i),
                                .part = static_cast<int>(p),
                                .flat_begin = begin,
                                .shard_begin = part.shard_begin + begin - part.flat_begin,
                                .count = end - begin,
                                .slice_begin = begin - slice.flat_offset});
    }
  }
  return shard;
}

}  // namespace convene::worker

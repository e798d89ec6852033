#include "worker_runtime/shard/flat_shard.h"

#include <algorithm>

#include "tools/base/check.h"

namespace convene::worker {

FlatShard MakeFlatShard(const ParameterTable& table, int dp_size, int dp_rank) {
  CONVENE_CHECK(table.flat_count % dp_size == 0);
  FlatShard shard;
  shard.count = table.flat_count / dp_size;
  shard.begin = shard.count * dp_rank;
  const int64_t shard_end = shard.begin + shard.count;
  for (size_t i = 0; i < table.slices.size(); ++i) {
    const ParameterSlice& slice = table.slices[i];
    const int64_t begin = std::max(slice.flat_offset, shard.begin);
    const int64_t end = std::min(slice.flat_offset + slice.count(), shard_end);
    if (begin >= end) continue;
    shard.segments.push_back({.parameter = static_cast<int>(i),
                              .flat_begin = begin,
                              .count = end - begin,
                              .slice_begin = begin - slice.flat_offset});
  }
  return shard;
}

}  // namespace convene::worker

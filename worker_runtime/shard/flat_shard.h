// PURE. ZeRO-1's cut (Rajbhandari et al. 2020, section 5.1): the flat buffer in dp equal shards,
// and which parameters each one crosses.
#pragma once

#include <cstdint>
#include <vector>

#include "worker_runtime/model/parameters.h"

namespace convene::worker {

// The part of one parameter that lies in a shard.
struct ShardSegment {
  int parameter = 0;       // index into ParameterTable::slices
  int64_t flat_begin = 0;  // in the rank's flat buffer
  int64_t count = 0;
  int64_t slice_begin = 0;  // first element within the parameter's slice (row-major)
};

struct FlatShard {
  int64_t begin = 0;  // in the flat buffer
  int64_t count = 0;
  std::vector<ShardSegment> segments;  // in flat order; padding is in none
};

// ParameterFlags (ops/elementwise.h), one for each kParameterAlignment elements of the shard.
// REQUIRES: as below.
std::vector<uint8_t> MakeParameterFlags(const ParameterTable& table, const FlatShard& shard);

// REQUIRES: table.flat_count is divisible by dp_size * kParameterAlignment.
FlatShard MakeFlatShard(const ParameterTable& table, int dp_size, int dp_rank);

}  // namespace convene::worker

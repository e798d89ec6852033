// PURE. ZeRO-1's cut (Rajbhandari et al. 2020, section 5.1): each bucket of the flat buffer is cut
// into dp equal parts; segments name the parameters that a rank's parts cross.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "worker_runtime/shard/placement.h"

namespace convene::worker {

// A rank's part of one bucket.
struct ShardPart {
  ParameterBucket bucket;
  int64_t flat_begin = 0;   // in the rank's flat buffer
  int64_t shard_begin = 0;  // in the shard
  int64_t count = 0;
};

// The piece of one parameter that lies in one part.
struct ShardSegment {
  int parameter = 0;        // index into Placement::parameters
  int part = 0;             // index into FlatShard::parts
  int64_t flat_begin = 0;   // in the rank's flat buffer
  int64_t shard_begin = 0;  // in the shard
  int64_t count = 0;
  int64_t slice_begin = 0;  // first element within the parameter's slice (row-major)
};

// The parts of the flat buffer that one rank updates, one after the other.
struct FlatShard {
  int64_t count = 0;
  std::vector<ShardPart> parts;        // one a bucket, in flat order
  std::vector<ShardSegment> segments;  // in flat order; padding is in none
};

// Neighbouring elements of one part that are all of matrices (ParameterSlice::is_matrix), or none;
// padding goes with what lies before it.
struct MatrixRun {
  int part = 0;
  int64_t shard_begin = 0;  // a multiple of kParameterAlignment, as is count
  int64_t count = 0;
  bool of_matrices = false;
  int64_t rest_before = 0;  // elements of no matrix in the runs before it
};

// The whole shard as runs, in flat order.
std::vector<MatrixRun> MatrixRuns(const Placement& placement, const FlatShard& shard);

// How many of the shard's elements before `shard_begin`, at most its count, are of no matrix.
int64_t RestBefore(absl::Span<const MatrixRun> runs, int64_t shard_begin);

// ParameterFlags (ops/elementwise.h), one for each kParameterAlignment elements of the shard.
// `speaks_for_shard`: else no parameter is kOwned. REQUIRES: as below.
std::vector<uint8_t> MakeParameterFlags(const Placement& placement, const FlatShard& shard,
                                        bool speaks_for_shard);

// REQUIRES: the buckets' counts are divisible by dp_size * kParameterAlignment.
FlatShard MakeFlatShard(const Placement& placement, int dp_size, int dp_rank);

}  // namespace convene::worker

// Chunks of a model for tests.
#pragma once

#include <vector>

#include "worker_runtime/model/parameters.h"

namespace convene::worker::testing {

// One of `count` even chunks, each on a pipeline rank of its own.
inline ModelChunk EvenChunk(const ModelConfig& config, int count, int chunk) {
  std::vector<int> ranks(count);
  for (int rank = 0; rank < count; ++rank) ranks[rank] = rank;
  return ChunksOf(std::vector<int>(count, config.layers / count), ranks)[chunk];
}

inline ModelChunk WholeModel(const ModelConfig& config) { return EvenChunk(config, 1, 0); }

}  // namespace convene::worker::testing

#include "worker_runtime/parallel/key_value_cache.h"

#include <numeric>
#include <utility>

namespace convene::worker {

KeyValueCache::KeyValueCache(const Shape& shape, Arena& arena)
    : shape_(shape),
      memory_(arena.Declare<char>("cache/keys and values",
                                  shape.bytes() * shape.layers.size() * shape.sequences)),
      positions_(arena.Declare<int32_t>("tables/positions", shape.context)) {}

void KeyValueCache::Bind(Device& device) {
  std::vector<int32_t> positions(shape_.context);
  std::iota(positions.begin(), positions.end(), 0);
  device.Copy(positions.data(), At(positions_), positions.size() * sizeof(int32_t),
              device.compute());
}

void KeyValueCache::SetRuns(std::vector<CachedRun> runs) {
  for (const CachedRun& run : runs) {
    CONVENE_CHECK(run.sequence >= 0 && run.sequence < shape_.sequences && run.begin >= 0 &&
                  run.count >= 1 && run.count <= shape_.context - run.begin);
  }
  runs_ = std::move(runs);
}

}  // namespace convene::worker

#include "worker_runtime/parallel/key_value_cache.h"

#include <numeric>
#include <utility>

namespace convene::worker {

KeyValueCache::KeyValueCache(const Shape& shape, Arena& arena)
    : shape_(shape),
      memory_(arena.Declare<char>("cache/keys and values",
                                  shape.bytes() * shape.layers * shape.sequences)),
      positions_(arena.Declare<int32_t>("tables/positions", shape.context)) {}

void KeyValueCache::Bind(Device& device) {
  std::vector<int32_t> positions(shape_.context);
  std::iota(positions.begin(), positions.end(), 0);
  device.Copy(positions.data(), At(positions_), positions.size() * sizeof(int32_t),
              device.compute());
}

void KeyValueCache::SetRows(std::vector<CachedRow> rows) {
  for (const CachedRow& row : rows) {
    CONVENE_CHECK(row.sequence >= 0 && row.sequence < shape_.sequences && row.begin >= 0 &&
                  row.count >= 0 && row.count <= shape_.context - row.begin);
  }
  rows_ = std::move(rows);
}

}  // namespace convene::worker

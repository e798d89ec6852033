// The keys and values of the tokens that some sequences have so far, for passes that go on with
// these sequences: each layer's attention puts the new tokens' behind the earlier ones, and attends
// to all of them (ContextAttention).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "tools/base/check.h"
#include "worker_runtime/device/arena.h"
#include "worker_runtime/device/device.h"
#include "worker_runtime/device/dtype.h"

namespace convene::worker {

// Neighbouring tokens of a pass that go on with one sequence.
struct CachedRun {
  int sequence = 0;  // of the cache
  int begin = 0;     // so many tokens the sequence has so far
  int first = 0;     // the place of the first one among the pass's tokens
  int count = 0;     // at least 1
  int logits = 0;    // so many of these tokens, the last ones, want the logits behind them
};

// Not thread-safe. All memory comes from the arena that was planned with it.
class KeyValueCache {
 public:
  struct Shape {
    std::vector<int> layers;  // the numbers in the model of those that have a cache here, ascending
    int sequences = 0;
    int context = 0;  // the most tokens of a sequence
    int width = 0;    // elements of one token's keys and values on this rank
    DType dtype = DType::kFloat32;

    // Of one layer and sequence.
    size_t bytes() const { return size_t{1} * context * width * SizeOf(dtype); }
  };

  KeyValueCache(const Shape& shape, Arena& arena);

  // Call it once the arena is built.
  void Bind(Device& device);

  const Shape& shape() const { return shape_; }

  // Of the passes that are queued from now on; their other tokens belong to no sequence. REQUIRES:
  // no two runs have the same sequence, and each one's tokens fit in the context.
  void SetRuns(std::vector<CachedRun> runs);
  absl::Span<const CachedRun> runs() const { return runs_; }

  // 0, 1, 2, ... up to the context, in the device's memory.
  const int32_t* positions() const { return At(positions_); }

  // (context, width): of each token all key heads, then all value heads. REQUIRES: `layer` is one
  // of Shape::layers.
  template <typename T>
  T* Tokens(int layer, int sequence) const {
    CONVENE_CHECK(kDTypeOf<T> == shape_.dtype);
    const auto found = std::lower_bound(shape_.layers.begin(), shape_.layers.end(), layer);
    CONVENE_CHECK(found != shape_.layers.end() && *found == layer);
    const size_t place = (found - shape_.layers.begin()) * shape_.sequences + sequence;
    return reinterpret_cast<T*>(At(memory_) + place * shape_.bytes());
  }

 private:
  const Shape shape_;
  const ArenaBlock<char> memory_;
  const ArenaBlock<int32_t> positions_;
  std::vector<CachedRun> runs_;
};

}  // namespace convene::worker

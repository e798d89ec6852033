#include "worker_runtime/comm/reduce.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "tools/base/check.h"

namespace convene::worker {
namespace {

// A block's running result stays in the first-level cache while the sources stream by.
constexpr size_t kBlock = 1024;

template <typename T>
void Add(const T* __restrict source, size_t count, T* __restrict sum) {
  for (size_t i = 0; i < count; ++i) sum[i] += source[i];
}

// Keeps a NaN on either side: a comparison with NaN is false. An `|`, not `||`: no branch.
template <typename T>
void Max(const T* __restrict source, size_t count, T* __restrict largest) {
  for (size_t i = 0; i < count; ++i) {
    const bool keep = (largest[i] >= source[i]) | std::isnan(largest[i]);
    largest[i] = keep ? largest[i] : source[i];
  }
}

template <typename T>
void Reduce(absl::Span<const T* const> sources, size_t count, ReduceOp op, T* result) {
  CONVENE_CHECK(!sources.empty());
  alignas(64) T block[kBlock];
  for (size_t start = 0; start < count; start += kBlock) {
    const size_t length = std::min(kBlock, count - start);
    std::memcpy(block, sources[0] + start, length * sizeof(T));
    for (size_t rank = 1; rank < sources.size(); ++rank) {
      if (op == ReduceOp::kSum) {
        Add(sources[rank] + start, length, block);
      } else {
        Max(sources[rank] + start, length, block);
      }
    }
    std::memcpy(result + start, block, length * sizeof(T));
  }
}

}  // namespace

void ReduceInOrder(absl::Span<const float* const> sources, size_t count, ReduceOp op,
                   float* result) {
  Reduce(sources, count, op, result);
}

void ReduceInOrder(absl::Span<const double* const> sources, size_t count, ReduceOp op,
                   double* result) {
  Reduce(sources, count, op, result);
}

}  // namespace convene::worker

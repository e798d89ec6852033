#include "worker_runtime/ops/cuda/matmul/carried_pointers.h"

#include <algorithm>
#include <cstddef>

#include "worker_runtime/ops/cuda/launch.cuh"

namespace convene::worker::cuda {
namespace {

// Of one launch, whose parameters may take 4 KiB.
constexpr int kCarried = 256;

struct Carried {
  const void* pointers[kCarried];
};

__global__ void __launch_bounds__(kCarried)
    StoreCarried(int count, const Carried carried, const void** to) {
  const int i = static_cast<int>(threadIdx.x);
  if (i < count) to[i] = carried.pointers[i];
}

}  // namespace

void StorePointers(absl::Span<const void* const> pointers, const void** to, Stream& stream) {
  for (size_t first = 0; first < pointers.size(); first += kCarried) {
    const size_t count = std::min(pointers.size() - first, size_t{kCarried});
    Carried carried = {};
    std::copy_n(pointers.data() + first, count, carried.pointers);
    Launch(stream, "store_pointers", 1, dim3(kCarried), StoreCarried, static_cast<int>(count),
           carried, to + first);
  }
}

}  // namespace convene::worker::cuda

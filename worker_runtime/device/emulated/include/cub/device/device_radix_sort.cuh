// Stands for CUB's header of that name.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "worker_runtime/device/emulated/runtime.h"

namespace cub {

struct DeviceRadixSort {
  // Stable, by the bits [begin_bit, end_bit). With `scratch` null it only tells the scratch's size.
  template <typename Key, typename Value>
  static cudaError_t SortPairs(void* scratch, size_t& scratch_bytes, const Key* keys,
                               Key* sorted_keys, const Value* values, Value* sorted_values,
                               int count, int begin_bit, int end_bit, cudaStream_t stream) {
    // As the real one: a histogram, and room for a second copy.
    const size_t needed = 4096 + static_cast<size_t>(count) * (sizeof(Key) + sizeof(Value));
    if (scratch == nullptr) {
      scratch_bytes = needed;
      return cudaSuccess;
    }
    if (scratch_bytes < needed) return cudaErrorInvalidValue;
    return convene::emulated::QueueWork(stream, [=] {
      std::fill_n(static_cast<unsigned char*>(scratch), needed, 0xff);
      std::vector<int> order(count);
      std::iota(order.begin(), order.end(), 0);
      const auto digits = [&](int i) {
        const uint64_t low = static_cast<uint64_t>(keys[i]) >> begin_bit;
        return low & ((uint64_t{1} << (end_bit - begin_bit)) - 1);
      };
      std::stable_sort(order.begin(), order.end(),
                       [&](int left, int right) { return digits(left) < digits(right); });
      for (int i = 0; i < count; ++i) {
        sorted_keys[i] = keys[order[i]];
        sorted_values[i] = values[order[i]];
      }
    });
  }
};

}  // namespace cub

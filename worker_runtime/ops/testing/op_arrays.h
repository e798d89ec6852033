// The operands of an op's test, in the memory of the device that the program tests.
#pragma once

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstddef>
#include <memory>
#include <vector>

#include "worker_runtime/device/device.h"
#include "worker_runtime/device/workspace.h"
#include "worker_runtime/ops/testing/ops_testing.h"
#include "worker_runtime/testing/device_array.h"
#include "worker_runtime/testing/places.h"

namespace convene::worker::testing {

inline Device& TheDevice() {
  static const std::unique_ptr<Device> device = MakeTestDevice();
  return *device;
}
inline Stream& TheStream() { return TheDevice().compute(); }

// An array of the device whose values begin `offset` elements behind the array's begin; between
// values that no op may touch.
template <typename T>
class Array {
 public:
  explicit Array(const std::vector<float>& values, size_t offset = 0)
      : offset_(offset), count_(values.size()), array_(Padded(values, offset), TheDevice()) {}

  T* data() const { return array_.data() + offset_; }
  std::vector<float> Fetch() const {
    const std::vector<float> all = Load(array_.Fetch());
    for (size_t i = 0; i < offset_; ++i) CHECK(all[i] == kMargin);
    for (size_t i = offset_ + count_; i < all.size(); ++i) CHECK(all[i] == kMargin);
    return {all.begin() + static_cast<ptrdiff_t>(offset_),
            all.begin() + static_cast<ptrdiff_t>(offset_ + count_)};
  }

 private:
  static constexpr float kMargin = 1024;
  static std::vector<T> Padded(const std::vector<float>& values, size_t offset) {
    std::vector<float> all(values.size() + offset + 64, kMargin);
    std::copy(values.begin(), values.end(), all.begin() + static_cast<ptrdiff_t>(offset));
    return Store<T>(all);
  }

  const size_t offset_;
  const size_t count_;
  const DeviceArray<T> array_;
};

// Full of NaN: no op may depend on it.
class Scratch {
 public:
  explicit Scratch(size_t bytes)
      : bytes_(bytes),
        memory_(std::vector<double>(bytes / sizeof(double) + 1, std::nan("")), TheDevice()) {}
  Workspace get() const { return {memory_.data(), bytes_}; }

 private:
  const size_t bytes_;
  const DeviceArray<double> memory_;
};

inline std::vector<float> Poison(size_t count) { return std::vector<float>(count, std::nanf("")); }

}  // namespace convene::worker::testing

// Arrays in a device's memory, for tests that run on every device: what a test computes on the host
// goes there, and what it looks at comes back, by copies.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "tools/base/check.h"
#include "worker_runtime/device/device.h"

namespace convene::worker::testing {

// The values at `data` in the memory of `device`, after all that compute() holds.
template <typename T>
std::vector<T> Fetch(absl::Span<const T> data, Device& device) {
  std::vector<T> values(data.size());
  device.Copy(data.data(), values.data(), data.size() * sizeof(T), device.compute());
  return values;
}
template <typename T>
std::vector<T> Fetch(absl::Span<T> data, Device& device) {
  return Fetch(absl::Span<const T>(data), device);
}

// The values become those at `data` in the memory of `device`, after all that compute() holds and
// before all that it is given from now on.
template <typename T>
void Put(const std::vector<T>& values, T* data, Device& device) {
  device.Copy(values.data(), data, values.size() * sizeof(T), device.compute());
}

// A block of `device`, which is borrowed, or of a memory of its collectives.
template <typename T>
class DeviceArray {
 public:
  DeviceArray(const std::vector<T>& values, Device& device, Memory* memory = nullptr)
      : device_(device),
        memory_(memory != nullptr ? *memory : device.memory()),
        count_(values.size()) {
    const auto data = memory_.Allocate(count_ * sizeof(T));
    CONVENE_CHECK(data.ok());
    data_ = static_cast<T*>(*data);
    Put(values, data_, device_);
  }
  // REQUIRES: no queued work still uses it.
  ~DeviceArray() { memory_.Free(data_, count_ * sizeof(T)); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  T* data() const { return data_; }
  absl::Span<T> span() const { return {data_, count_}; }
  std::vector<T> Fetch() const { return testing::Fetch(span(), device_); }

 private:
  Device& device_;
  Memory& memory_;
  const size_t count_;
  T* data_ = nullptr;
};

}  // namespace convene::worker::testing

// Arrays on the GPU for tests: poisoned, with a margin on both sides that no op may touch.
#pragma once

#include <catch2/catch.hpp>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "tools/base/testing/status_testing.h"
#include "worker_runtime/device/cuda/testing/gpu_testing.h"
#include "worker_runtime/device/device.h"
#include "worker_runtime/device/workspace.h"

namespace convene::worker::cuda {

// The first GPU, for all test cases. REQUIRES: HasGpuOrSkips().
inline Device& Gpu() {
  static const std::unique_ptr<Device> device = [] {
    absl::StatusOr<std::unique_ptr<Device>> made = Device::Cuda(0);
    REQUIRE_OK(made);
    return *std::move(made);
  }();
  return *device;
}

// A byte that makes a NaN of every type it fills.
inline constexpr unsigned char kPoison = 0xff;

// `count` elements of poison, or a copy of host values, starting `offset` elements after a multiple
// of 256 bytes.
template <typename T>
class OnGpu {
 public:
  explicit OnGpu(size_t count, size_t offset = 0)
      : count_(count), before_(kMargin / sizeof(T) + offset) {
    bytes_.assign((before_ + count) * sizeof(T) + kMargin, kPoison);
    absl::StatusOr<void*> memory = Gpu().memory().Allocate(bytes_.size());
    REQUIRE_OK(memory);
    memory_ = *memory;
    Gpu().Copy(bytes_.data(), memory_, bytes_.size(), Gpu().compute());
  }
  explicit OnGpu(const std::vector<T>& values, size_t offset = 0) : OnGpu(values.size(), offset) {
    if (count_ > 0) Gpu().Copy(values.data(), data(), count_ * sizeof(T), Gpu().compute());
  }
  ~OnGpu() { Gpu().memory().Free(memory_, bytes_.size()); }
  OnGpu(const OnGpu&) = delete;
  OnGpu& operator=(const OnGpu&) = delete;

  T* data() { return static_cast<T*>(memory_) + before_; }

  // Waits for what is queued; fails the test on any error, and on a margin that was written.
  std::vector<T> Read() {
    REQUIRE_OK(Gpu().Synchronize(absl::Seconds(60)));
    Gpu().Copy(memory_, bytes_.data(), bytes_.size(), Gpu().compute());
    REQUIRE_OK(Gpu().Synchronize(absl::Seconds(60)));
    const size_t begin = before_ * sizeof(T);
    const size_t end = begin + count_ * sizeof(T);
    size_t margin_bytes_written = 0;
    for (size_t i = 0; i < bytes_.size(); ++i) {
      if ((i < begin || i >= end) && bytes_[i] != kPoison) ++margin_bytes_written;
    }
    REQUIRE(margin_bytes_written == 0);
    std::vector<T> values(count_);
    if (count_ > 0) std::memcpy(values.data(), bytes_.data() + begin, count_ * sizeof(T));
    return values;
  }

 private:
  static constexpr size_t kMargin = 1024;
  const size_t count_;
  const size_t before_;  // elements
  std::vector<unsigned char> bytes_;
  void* memory_ = nullptr;
};

// Scratch of exactly as many bytes as an op asked for.
class GpuWorkspace {
 public:
  explicit GpuWorkspace(size_t bytes) : memory_(bytes), bytes_(bytes) {}
  // Also finds what was written past its end.
  void Check() { memory_.Read(); }
  Workspace get() { return {memory_.data(), bytes_}; }

 private:
  OnGpu<char> memory_;
  const size_t bytes_;
};

// Whether two arrays have the same bits, NaNs included.
template <typename T>
bool SameBits(const std::vector<T>& left, const std::vector<T>& right) {
  return left.size() == right.size() &&
         (left.empty() || std::memcmp(left.data(), right.data(), left.size() * sizeof(T)) == 0);
}

}  // namespace convene::worker::cuda

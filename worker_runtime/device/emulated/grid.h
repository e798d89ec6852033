// Runs a kernel's grid on the calling thread: block after block, a block's threads as fibers.
#pragma once

#include <cstddef>
#include <functional>
#include <string>

#include "worker_runtime/device/emulated/kernel.h"

namespace convene::emulated {

inline constexpr int kWarpThreads = 32;
inline constexpr int kBlockThreadsMax = 1024;
// Shared memory: a kernel gets the first amount unless it asks for more, up to what each card from
// compute capability 8.0 on has: 8.6, 8.9 and 12.0 have the least (CUDA C++ Programming Guide,
// "Technical Specifications per Compute Capability").
inline constexpr size_t kSharedBytesDefault = size_t{48} << 10;
inline constexpr size_t kSharedBytesMax = size_t{99} << 10;

// The order in which threads that can run do run.
enum class Order {
  kForward,  // the first warp's first thread: it runs as far ahead of the others as it can
  kReverse,  // the last warp's last thread
  kRandom,   // any; so are the blocks' order and the streams'
};
// From CONVENE_EMULATED_ORDER: "forward" (also when unset), "reverse", "random".
Order OrderFromEnvironment();

struct Grid {
  dim3 blocks;
  dim3 threads;
  size_t dynamic_shared_bytes = 0;
  std::function<void()> thread;  // one thread's work: the kernel with its arguments
};

// Returns the violation in words that name block, thread and line; empty without one. After a
// violation nothing more of the grid runs. One grid at a time.
std::string RunGrid(const Grid& grid, Order order);

}  // namespace convene::emulated

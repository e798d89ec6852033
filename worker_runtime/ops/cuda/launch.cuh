// The one way in which a kernel is queued.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <limits>

#include "tools/base/check.h"
#include "worker_runtime/device/cuda/queue.h"
#include "worker_runtime/device/stream.h"

namespace convene::worker::cuda {

// Queues `kernel` with `blocks` blocks of `threads`; nothing for no blocks. CUDA's answer goes to
// the queue under the name `op`.
template <typename... Parameters, typename... Arguments>
void Launch(Stream& stream, const char* op, int64_t blocks, dim3 threads,
            void (*kernel)(Parameters...), const Arguments&... arguments) {
  if (blocks == 0) return;
  CONVENE_CHECK(blocks > 0 && blocks <= std::numeric_limits<int32_t>::max());
  Queue& queue = stream.queue();
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned int>(blocks));
  config.blockDim = threads;
  config.stream = queue.stream();
  queue.Report(cudaLaunchKernelEx(&config, kernel, Parameters(arguments)...), op);
}

}  // namespace convene::worker::cuda

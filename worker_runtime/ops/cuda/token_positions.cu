// Positions of tokens in their documents. A thread has a token.
#include <cstdint>

#include "worker_runtime/ops/cuda/cuda_ops.h"
#include "worker_runtime/ops/cuda/launch.cuh"
#include "worker_runtime/ops/cuda/tile.cuh"

namespace convene::worker::cuda {
namespace {

__global__ void __launch_bounds__(kFlatThreads)
    Positions(int64_t count, int length, const TokenRuns runs, const int32_t* document_begin,
              int32_t* positions) {
  const int64_t i = FlatVectorAt(0, 1);
  if (i >= count) return;
  const int64_t row = i / length;
  const int t = static_cast<int>(i % length);
  int position = runs.first[t / runs.run] + t % runs.run;
  if (document_begin != nullptr) {
    position -= document_begin[row * runs.begin_stride + runs.begin_offset + t];
  }
  positions[i] = position;
}

}  // namespace

void TokenPositions(int batch, int length, const TokenRuns& runs, const int32_t* document_begin,
                    int32_t* positions, Stream& stream) {
  const int64_t count = int64_t{batch} * length;
  Launch(stream, "token_positions", FlatBlocks(count, 1, 1), dim3(kFlatThreads), Positions, count,
         length, runs, document_begin, positions);
}

}  // namespace convene::worker::cuda

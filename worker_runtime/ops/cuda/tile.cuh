// A thread's place in the launches of TileGeometry and FlatBlocks.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "worker_runtime/ops/cuda/launch_geometry.h"

namespace convene::worker::cuda {

// REQUIRES: MakeTileGeometry's launch with the same chunks and unroll.
struct Tile {
  int64_t row;  // may be past the last
  int64_t first_vector;

  __device__ __forceinline__ Tile(int chunks, int unroll) {
    const unsigned int group = blockIdx.x / static_cast<unsigned int>(chunks);
    const unsigned int chunk = blockIdx.x % static_cast<unsigned int>(chunks);
    row = int64_t{group} * blockDim.y + threadIdx.y;
    first_vector = int64_t{chunk} * unroll * blockDim.x + threadIdx.x;
  }
  // The row's vector that is this thread's u-th; may be past the row's end, as are then all later.
  __device__ __forceinline__ int64_t VectorAt(int u) const {
    return first_vector + int64_t{u} * blockDim.x;
  }
};

// This thread's u-th vector of a flat array. REQUIRES: FlatBlocks's launch with the same unroll.
__device__ __forceinline__ int64_t FlatVectorAt(int u, int unroll) {
  return (int64_t{blockIdx.x} * unroll + u) * kFlatThreads + threadIdx.x;
}

}  // namespace convene::worker::cuda

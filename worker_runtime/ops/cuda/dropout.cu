#include <cstdint>

#include "worker_runtime/ops/cuda/cuda_ops.h"
#include "worker_runtime/ops/cuda/launch.cuh"
#include "worker_runtime/ops/cuda/launch_geometry.h"
#include "worker_runtime/ops/cuda/vector.cuh"
#include "worker_runtime/ops/instantiate.h"

namespace convene::worker::cuda {
namespace {

// A thread takes the columns of one drawing. The arithmetic of a drawing, not the memory, takes the
// time, so numbers are moved one by one.
template <typename T>
__global__ void __launch_bounds__(kFlatThreads)
    Drop(int64_t drawings, int columns, int quads, DropoutMask mask, bool adds, const T* x, T* y) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kFlatThreads + threadIdx.x;
  if (i >= drawings) return;
  const int64_t row = i / quads;
  const int quad = mask.first_column / 4 + static_cast<int>(i % quads);
  const PhiloxCounter bits = mask.Bits(mask.tokens[row], static_cast<uint32_t>(quad));
  const uint32_t limit = mask.limit();
  const float factor = mask.factor();
  for (int word = 0; word < 4; ++word) {
    const int column = 4 * quad + word - mask.first_column;
    if (column < 0 || column >= columns) continue;
    const int64_t at = row * columns + column;
    float value = bits[word] < limit ? 0.0f : factor * Widen(x + at);
    if (adds) value += Widen(y + at);
    Narrow(value, y + at);
  }
}

}  // namespace

template <typename T>
void Dropout(int rows, int columns, const DropoutMask& mask, bool adds, const T* x, T* y,
             Stream& stream) {
  if (rows == 0 || columns == 0) return;
  const int quads = (mask.first_column + columns - 1) / 4 - mask.first_column / 4 + 1;
  const int64_t drawings = int64_t{rows} * quads;
  Launch(stream, "dropout", FlatBlocks(drawings, 1, 1), dim3(kFlatThreads), Drop<T>, drawings,
         columns, quads, mask, adds, x, y);
}
CONVENE_INSTANTIATE(Dropout);

}  // namespace convene::worker::cuda

#include "worker_runtime/shard/matrix_memory.h"

#include "tools/base/rounding.h"
#include "worker_runtime/model/config.h"

namespace convene::worker {

MatrixMemory MatrixMemoryOf(const MatrixSizes& sizes, int tp, DType dtype) {
  const size_t element = SizeOf(dtype);
  const int64_t slot = RoundUp(sizes.largest, kParameterAlignment);
  return {.slot = slot,
          .bucket = sizes.bucket * element,
          .whole = tp * slot * element,
          .square = sizes.shorter_side * sizes.shorter_side * element,
          .product = slot * sizeof(float)};
}

}  // namespace convene::worker

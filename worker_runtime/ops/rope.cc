#include "worker_runtime/ops/rope.h"

#include <cmath>
#include <cstddef>

namespace convene::worker {

void RopeTable(int sequence_length, int head_size, double theta, float* cosines, float* sines) {
  const int half = head_size / 2;
  for (int position = 0; position < sequence_length; ++position) {
    for (int i = 0; i < half; ++i) {
      const double angle = position * std::pow(theta, -2.0 * i / head_size);
      const ptrdiff_t index = static_cast<ptrdiff_t>(position) * half + i;
      cosines[index] = static_cast<float>(std::cos(angle));
      sines[index] = static_cast<float>(std::sin(angle));
    }
  }
}

}  // namespace convene::worker

#include "worker_runtime/ops/dropout.h"

#include <cstdint>

#include "worker_runtime/ops/cpu/cpu_ops.h"
#include "worker_runtime/ops/cpu/simd.h"
#include "worker_runtime/ops/cpu/thread_count.h"
#include "worker_runtime/ops/instantiate.h"

namespace convene::worker::cpu {
namespace {

constexpr double kNanoseconds = 6;  // an element

template <typename T>
void DropRow(int columns, const DropoutMask& mask, int64_t token, bool adds, const T* x, T* y) {
  const uint32_t limit = mask.limit();
  const float factor = mask.factor();
  for (int begin = 0; begin < columns;) {
    const int place = mask.first_column + begin;
    const PhiloxCounter bits = mask.Bits(token, static_cast<uint32_t>(place / 4));
    for (int word = place % 4; word < 4 && begin < columns; ++word, ++begin) {
      float value = bits[word] < limit ? 0.0f : factor * Widen(x[begin]);
      if (adds) value += Widen(y[begin]);
      Narrow(value, y + begin);
    }
  }
}

}  // namespace

template <typename T>
void Dropout(int rows, int columns, const DropoutMask& mask, bool adds, const T* x, T* y,
             Stream& /*stream*/) {
  ForPieces(kNanoseconds * rows * columns, rows, [=](int64_t row) {
    DropRow(columns, mask, mask.tokens[row], adds, x + row * columns, y + row * columns);
  });
}

CONVENE_INSTANTIATE(Dropout);

}  // namespace convene::worker::cpu

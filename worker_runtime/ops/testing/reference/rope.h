// Plain rotary embedding; the contract is ops/rope.h.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

namespace convene::worker::reference {

template <typename Real>
void RopeTable(int sequence_length, int head_size, double theta, Real* cosines, Real* sines) {
  const ptrdiff_t half = head_size / 2;
  for (ptrdiff_t position = 0; position < sequence_length; ++position) {
    for (ptrdiff_t i = 0; i < half; ++i) {
      const double angle = static_cast<double>(position) *
                           std::pow(theta, -2.0 * static_cast<double>(i) / head_size);
      cosines[position * half + i] = static_cast<Real>(std::cos(angle));
      sines[position * half + i] = static_cast<Real>(std::sin(angle));
    }
  }
}

template <typename Real>
void RopeApply(int batch, int sequence_length, int heads, int head_size, int turned, int row_stride,
               const Real* cosines, const Real* sines, const int32_t* positions,
               const int32_t* document_begin, bool inverse, Real* x) {
  const ptrdiff_t half = turned / 2;
  for (ptrdiff_t row = 0; row < ptrdiff_t{batch} * sequence_length; ++row) {
    const ptrdiff_t token = row % sequence_length;
    const ptrdiff_t position = (positions == nullptr ? token : positions[token]) -
                               (document_begin == nullptr ? 0 : document_begin[row]);
    for (ptrdiff_t head = 0; head < heads; ++head) {
      for (ptrdiff_t i = 0; i < half; ++i) {
        Real& low = x[row * row_stride + head * head_size + i];
        Real& high = x[row * row_stride + head * head_size + half + i];
        const ptrdiff_t angle = position * half + i;
        const Real cosine = cosines[angle];
        const Real sine = inverse ? -sines[angle] : sines[angle];
        const Real turned_low = low * cosine - high * sine;
        high = high * cosine + low * sine;
        low = turned_low;
      }
    }
  }
}

}  // namespace convene::worker::reference

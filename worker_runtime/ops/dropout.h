// Dropout (Srivastava et al. 2014): some numbers become 0, the others grow. T: float or BFloat16.
//
// Whether a number stays follows from the seed, its token, its layer and its column alone: every
// cut of rows, columns, samples or layers over ranks, and every pass again, has the same mask.
#pragma once

#include <cstdint>

#include "worker_runtime/device/dtype.h"
#include "worker_runtime/device/stream.h"
#include "worker_runtime/ops/philox.h"

namespace convene::worker {

struct DropoutMask {
  double probability = 0;  // that a number becomes 0; below 1. 0: all stay
  uint64_t seed = 0;
  uint32_t layer = 0;               // a number for each place in the model
  int first_column = 0;             // of x, in the whole row that ranks share
  const int64_t* tokens = nullptr;  // (rows): a number for each token of the run

  CONVENE_HOST_DEVICE bool is_on() const { return probability > 0 && tokens != nullptr; }
  // Of the numbers that stay.
  CONVENE_HOST_DEVICE float factor() const { return static_cast<float>(1 / (1 - probability)); }
  // Random bits below it: the number becomes 0.
  CONVENE_HOST_DEVICE uint32_t limit() const {
    return static_cast<uint32_t>(probability * 4294967296.0);
  }
  // Random bits of four columns, from 4 x `quad` of the whole row on.
  CONVENE_HOST_DEVICE PhiloxCounter Bits(int64_t token, uint32_t quad) const {
    return Philox({{quad, layer, static_cast<uint32_t>(token),
                    static_cast<uint32_t>(static_cast<uint64_t>(token) >> 32)}},
                  seed);
  }
};

// y becomes x with some of its numbers 0 and the others divided by 1 - probability, or with `adds`
// this is added to y. x, y: (rows, columns), not the same array where `adds`. REQUIRES:
// mask.is_on().
template <typename T>
void Dropout(int rows, int columns, const DropoutMask& mask, bool adds, const T* x, T* y,
             Stream& stream);

}  // namespace convene::worker

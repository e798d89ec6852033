// AdamW (Loshchilov and Hutter 2019), with bias correction as in PyTorch.
#pragma once

#include <cstdint>

#include "worker_runtime/device/stream.h"

namespace convene::worker {

struct AdamWParameters {
  double learning_rate = 0;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double weight_decay = 0;
  int64_t step = 1;  // counts from 1
  // Multiplies every gradient first: the clipping factor.
  float gradient_scale = 1;
};

// weights, first_moment, second_moment: (count), updated in place; gradients: (count), read.
void AdamW(int64_t count, const AdamWParameters& parameters, const float* gradients, float* weights,
           float* first_moment, float* second_moment, Stream& stream);

}  // namespace convene::worker

// AdamW (Loshchilov and Hutter 2019), with bias correction as in PyTorch.
#pragma once

#include <cstdint>

#include "worker_runtime/device/stream.h"
#include "worker_runtime/ops/elementwise.h"
#include "worker_runtime/ops/update.h"

namespace convene::worker {

// The update's constants, computed in double and rounded once.
struct AdamWFactors {
  float beta1;
  float beta2;
  float one_minus_beta1;
  float one_minus_beta2;
  float decay;          // 1 - learning_rate * weight_decay, for parameters that are kDecayed
  float step_size;      // learning_rate / (1 - beta1^step)
  float second_factor;  // 1 / sqrt(1 - beta2^step)
  float epsilon;
};
AdamWFactors MakeAdamWFactors(const UpdateParameters& parameters);

// The update of `count` elements, all arrays of that length, in place; gradients are read. factors,
// control: one each, in the device's memory. flags: (count / 64), see ParameterFlag. `master` are
// the fp32 weights; `weights` become the same rounded to T. For T = float there is one copy: pass
// it as both. On a GPU the update leaves Stream::left_free() multiprocessors to other streams.
// REQUIRES: count is a multiple of kFlagBlock; every array starts at a multiple of 64 bytes.
template <typename T>
void AdamW(int64_t count, const AdamWFactors* factors, const StepControl* control,
           const uint8_t* flags, const float* gradients, float* master, T* weights,
           float* first_moment, float* second_moment, Stream& stream);

}  // namespace convene::worker

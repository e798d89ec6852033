// AdamW (Loshchilov and Hutter 2019), with bias correction as in PyTorch.
#pragma once

#include <cstdint>

#include "worker_runtime/device/dtype.h"
#include "worker_runtime/device/stream.h"
#include "worker_runtime/ops/elementwise.h"

namespace convene::worker {

struct AdamWParameters {
  double learning_rate = 0;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double weight_decay = 0;
  int64_t step = 1;  // counts from 1
};

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
AdamWFactors MakeAdamWFactors(const AdamWParameters& parameters);

// How a step treats its gradients; the device decides it, so that no host waits for the norm.
struct StepControl {
  float gradient_scale;  // multiplies every gradient first: the clipping factor
  int32_t skip;          // not 0: weights and moments stay as they are
};

// From the global norm's square and the limit (0 = no clipping), as torch.nn.utils.clip_grad_norm_:
// gradient_scale = min(1, max_norm / (norm + 1e-6)). A norm that is infinite or NaN skips the step.
CONVENE_HOST_DEVICE inline StepControl ControlStep(double norm, double max_norm) {
  if (!(norm <= 1.7976931348623157e308)) return {0.0f, 1};
  if (max_norm == 0) return {1.0f, 0};
  const double scale = max_norm / (norm + 1e-6);
  return {scale < 1 ? static_cast<float>(scale) : 1.0f, 0};
}

// *control = ControlStep(sqrt(*sum_of_squares), max_norm), both in the device's memory.
void DecideStep(const double* sum_of_squares, double max_norm, StepControl* control,
                Stream& stream);

// The update of `count` elements, all arrays of that length, in place; gradients are read. factors,
// control: one each, in the device's memory. flags: (count / 64), see ParameterFlag. `master` are
// the fp32 weights; `weights` become the same rounded to T. For T = float there is one copy: pass
// it as both. REQUIRES: count is a multiple of kFlagBlock; every array starts at a multiple of 64
// bytes.
template <typename T>
void AdamW(int64_t count, const AdamWFactors* factors, const StepControl* control,
           const uint8_t* flags, const float* gradients, float* master, T* weights,
           float* first_moment, float* second_moment, Stream& stream);

}  // namespace convene::worker

// Descent with momentum, in two halves, so that a rule may change the direction between them: SGD
// as torch.optim.SGD without dampening (Sutskever et al. 2013, section 2), and Muon's part of it.
#pragma once

#include <cstdint>

#include "worker_runtime/device/stream.h"
#include "worker_runtime/ops/elementwise.h"
#include "worker_runtime/ops/update.h"

namespace convene::worker {

struct MomentumFactors {
  float momentum;
  float decay;  // times the weight is added to the gradient, for parameters that are kDecayed
  int32_t nesterov;
};

struct DescentFactors {
  float step_size;
  float decay;  // times the weight is added to the direction, for parameters that are kDecayed
};

// For both: `count` elements, in place, all arrays of that length; factors, control: one each, in
// the device's memory; flags: (count / 64), see ParameterFlag. A step that is skipped changes
// nothing. REQUIRES: count is a multiple of kFlagBlock; every array starts at a multiple of 64
// bytes.

// g = gradient * gradient_scale + decay * weight; momentum = factors.momentum * momentum + g.
// gradients become the direction: momentum; with nesterov g + factors.momentum * momentum.
// `momentum`: null where factors.momentum is 0: the direction is g.
void Momentum(int64_t count, const MomentumFactors* factors, const StepControl* control,
              const uint8_t* flags, const float* master, float* gradients, float* momentum,
              Stream& stream);

// master -= step_size * (direction + decay * master), and `weights` become the same rounded to T.
// For T = float there is one copy: pass it as both.
template <typename T>
void Descend(int64_t count, const DescentFactors* factors, const StepControl* control,
             const uint8_t* flags, const float* direction, float* master, T* weights,
             Stream& stream);

}  // namespace convene::worker

// Plain SGD, the steps of torch.optim.SGD; the contract is ops/sgd.h.
#pragma once

#include <cstdint>

#include "worker_runtime/ops/sgd.h"

namespace convene::worker::reference {

// Both halves.
template <typename Real>
void Sgd(int64_t count, const UpdateParameters& parameters, Real gradient_scale,
         const Real* gradients, Real* weights, Real* momentum) {
  const Real mass = static_cast<Real>(parameters.momentum);
  for (int64_t i = 0; i < count; ++i) {
    Real gradient = gradients[i] * gradient_scale;
    gradient += static_cast<Real>(parameters.weight_decay) * weights[i];
    momentum[i] = mass * momentum[i] + gradient;
    const Real direction = parameters.nesterov ? gradient + mass * momentum[i] : momentum[i];
    weights[i] -= static_cast<Real>(parameters.learning_rate) * direction;
  }
}

}  // namespace convene::worker::reference

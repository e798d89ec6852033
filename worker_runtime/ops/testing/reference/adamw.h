// Plain AdamW, the steps of torch.optim.AdamW; the contract is ops/adamw.h.
#pragma once

#include <cmath>
#include <cstdint>

#include "worker_runtime/ops/adamw.h"

namespace convene::worker::reference {

template <typename Real>
void AdamW(int64_t count, const UpdateParameters& parameters, Real gradient_scale,
           const Real* gradients, Real* weights, Real* first_moment, Real* second_moment) {
  const double step = static_cast<double>(parameters.step);
  const Real correction1 = static_cast<Real>(1.0 - std::pow(parameters.beta1, step));
  const Real correction2 = static_cast<Real>(1.0 - std::pow(parameters.beta2, step));
  const Real beta1 = static_cast<Real>(parameters.beta1);
  const Real beta2 = static_cast<Real>(parameters.beta2);
  const Real learning_rate = static_cast<Real>(parameters.learning_rate);
  for (int64_t i = 0; i < count; ++i) {
    const Real gradient = gradients[i] * gradient_scale;
    weights[i] -= learning_rate * static_cast<Real>(parameters.weight_decay) * weights[i];
    first_moment[i] = beta1 * first_moment[i] + (Real{1} - beta1) * gradient;
    second_moment[i] = beta2 * second_moment[i] + (Real{1} - beta2) * gradient * gradient;
    const Real first = first_moment[i] / correction1;
    const Real second = second_moment[i] / correction2;
    weights[i] -=
        learning_rate * first / (std::sqrt(second) + static_cast<Real>(parameters.epsilon));
  }
}

}  // namespace convene::worker::reference

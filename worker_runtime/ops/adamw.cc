#include "worker_runtime/ops/adamw.h"

#include <cmath>

namespace convene::worker {

AdamWFactors MakeAdamWFactors(const UpdateParameters& parameters) {
  const double step = static_cast<double>(parameters.step);
  const double correction1 = 1.0 - std::pow(parameters.beta1, step);
  const double correction2 = 1.0 - std::pow(parameters.beta2, step);
  return {.beta1 = static_cast<float>(parameters.beta1),
          .beta2 = static_cast<float>(parameters.beta2),
          .one_minus_beta1 = static_cast<float>(1.0 - parameters.beta1),
          .one_minus_beta2 = static_cast<float>(1.0 - parameters.beta2),
          .decay = static_cast<float>(1.0 - parameters.learning_rate * parameters.weight_decay),
          .step_size = static_cast<float>(parameters.learning_rate / correction1),
          .second_factor = static_cast<float>(1.0 / std::sqrt(correction2)),
          .epsilon = static_cast<float>(parameters.epsilon)};
}

}  // namespace convene::worker

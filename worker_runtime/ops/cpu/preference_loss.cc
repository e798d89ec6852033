#include "worker_runtime/ops/preference_loss.h"

#include <algorithm>
#include <cmath>

#include "worker_runtime/ops/cpu/cpu_ops.h"

namespace convene::worker::cpu {

// One thread: a few numbers.
void PreferenceLoss(int pairs, double beta, const double* answer_losses, const double* references,
                    const float* gradient_scale, double* loss_sum, double* rewards, float* weights,
                    Stream& /*stream*/) {
  for (int i = 0; i < pairs; ++i) {
    const bool counts = !std::isnan(references[i]);
    const double margin =
        counts ? beta * (answer_losses[2 * i + 1] - answer_losses[2 * i] - references[i]) : 0;
    // Of a large margin exp is 0, of one far below 0 the first term is all: nothing overflows.
    const double odds = std::exp(-std::abs(margin));
    if (counts) *loss_sum += std::max(-margin, 0.0) + std::log1p(odds);
    if (counts && rewards != nullptr) {
      rewards[0] += margin > 0 ? 1 : 0;
      rewards[1] += margin;
    }
    if (weights == nullptr) continue;
    const double wrong = margin < 0 ? 1 / (1 + odds) : odds / (1 + odds);
    const double weight = counts ? beta * wrong * double{*gradient_scale} : 0;
    weights[2 * i] = static_cast<float>(weight);
    weights[2 * i + 1] = static_cast<float>(-weight);
  }
}

}  // namespace convene::worker::cpu

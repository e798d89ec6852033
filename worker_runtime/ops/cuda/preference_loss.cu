// The loss of pairs of answers. One thread: a few numbers, summed in their order.
#include <cmath>

#include "worker_runtime/ops/cuda/cuda_ops.h"
#include "worker_runtime/ops/cuda/launch.cuh"

namespace convene::worker::cuda {
namespace {

__global__ void __launch_bounds__(1)
    Preference(int pairs, double beta, const double* answer_losses, const double* references,
               const float* gradient_scale, double* loss_sum, double* rewards, float* weights) {
  for (int i = 0; i < pairs; ++i) {
    const bool counts = !std::isnan(references[i]);
    const double margin =
        counts ? beta * (answer_losses[2 * i + 1] - answer_losses[2 * i] - references[i]) : 0.0;
    // Of a large margin exp is 0, of one far below 0 the first term is all: nothing overflows.
    const double odds = exp(-fabs(margin));
    if (counts) *loss_sum += fmax(-margin, 0.0) + log1p(odds);
    if (counts && rewards != nullptr) {
      rewards[0] += margin > 0 ? 1 : 0;
      rewards[1] += margin;
    }
    if (weights == nullptr) continue;
    const double wrong = margin < 0 ? 1 / (1 + odds) : odds / (1 + odds);
    const double weight = counts ? beta * wrong * static_cast<double>(*gradient_scale) : 0.0;
    weights[2 * i] = static_cast<float>(weight);
    weights[2 * i + 1] = static_cast<float>(-weight);
  }
}

}  // namespace

void PreferenceLoss(int pairs, double beta, const double* answer_losses, const double* references,
                    const float* gradient_scale, double* loss_sum, double* rewards, float* weights,
                    Stream& stream) {
  Launch(stream, "preference_loss", 1, dim3(1), Preference, pairs, beta, answer_losses, references,
         gradient_scale, loss_sum, rewards, weights);
}

}  // namespace convene::worker::cuda

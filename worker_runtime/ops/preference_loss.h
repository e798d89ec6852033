// The loss of pairs of answers, of which one is the better one: direct preference optimization
// (Rafailov et al. 2023, equation 7).
#pragma once

#include "worker_runtime/device/stream.h"

namespace convene::worker {

// answer_losses: (pairs, 2): the summed cross-entropy of each pair's chosen and of its rejected
// answer, as CrossEntropyLoss makes it. references: (pairs): the second minus the first of these
// under the model that the training began with; NaN: the pair does not count.
//
// *loss_sum += the sum over the pairs that count, in their order and in double, of
//   -log sigmoid(beta * (rejected - chosen - reference)).
// rewards: to the first is added how many of these pairs have a margin above 0 (what the sigmoid is
// taken of: the chosen answer's reward less the rejected one's), to the second the sum of the
// margins. Null: they are not wanted.
// weights: (pairs, 2): that loss's derivative by each of answer_losses, times *gradient_scale: what
// CrossEntropyGradient takes for the rows of that answer; 0 where the pair does not count. Null:
// only the loss is wanted. All in the device's memory.
void PreferenceLoss(int pairs, double beta, const double* answer_losses, const double* references,
                    const float* gradient_scale, double* loss_sum, double* rewards, float* weights,
                    Stream& stream);

}  // namespace convene::worker

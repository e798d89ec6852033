// PURE. What a step does with its gradient norm.
#pragma once

#include <cstdint>
#include <string>

namespace convene::worker {

struct ClipDecision {
  // The weights and moments stay as they are: the gradients are not numbers.
  bool skip_step = false;
  // What every gradient is multiplied by (AdamWParameters::gradient_scale); 0 when the step is
  // skipped.
  float gradient_scale = 1;
  // Why the step is skipped, for the log; "" otherwise: clipping is an everyday matter, and a step
  // must not allocate for words nobody reads.
  std::string why;
};

// gradient_scale = min(1, max_norm / (gradient_norm + 1e-6)), as torch.nn.utils.clip_grad_norm_;
// max_norm 0 = no clipping. A norm that is infinite or NaN skips the step, with clipping or
// without. `step` is for the text alone. REQUIRES: max_norm >= 0.
ClipDecision DecideClip(double max_norm, double gradient_norm, int64_t step);

}  // namespace convene::worker

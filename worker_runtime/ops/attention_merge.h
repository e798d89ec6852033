// PURE. The arithmetic of AttentionMerge (attention.h) that every device shares.
#pragma once

#include <cmath>

#include "worker_runtime/device/dtype.h"

namespace convene::worker {

// out = kept * out + part * part_out is the attention to the keys of both.
struct MergeWeights {
  // Of what was merged before, and of the part; -infinity: no key was seen.
  CONVENE_HOST_DEVICE MergeWeights(float before, float of_part)
      : kept(1), part(0), log_sum_exp(before) {
    const float larger = before < of_part ? of_part : before;
    if (before == -INFINITY && of_part == -INFINITY) return;
    kept = std::exp(before - larger);
    part = std::exp(of_part - larger);
    const float sum = kept + part;
    kept /= sum;
    part /= sum;
    log_sum_exp = larger + std::log(sum);
  }

  float kept;
  float part;
  float log_sum_exp;
};

}  // namespace convene::worker

#include "worker_runtime/ops/router_bias.h"

#include <cmath>

#include "worker_runtime/ops/cpu/cpu_ops.h"

namespace convene::worker::cpu {

// One thread each: a few hundred numbers.
void RouterImbalance(int sequences, const RouterShape& shape, const float* statistics, bool adds,
                     float* imbalance, Stream& /*stream*/) {
  const int width = RouterStatisticsWidth(shape.experts);
  float choices = 0;
  for (int64_t sequence = 0; sequence < sequences; ++sequence) {
    for (int i = 0; i < shape.experts; ++i) choices += statistics[sequence * width + i];
  }
  for (int i = 0; i < shape.experts; ++i) {
    float count = 0;
    for (int64_t sequence = 0; sequence < sequences; ++sequence) {
      count += statistics[sequence * width + i];
    }
    imbalance[i] = (adds ? imbalance[i] : 0) + static_cast<float>(shape.experts) * count - choices;
  }
}

void RouterBiasStep(int64_t count, float rate, const StepControl* control, float* imbalance,
                    float* bias, Stream& /*stream*/) {
  for (int64_t i = 0; i < count; ++i) {
    if (control->skip == SkipReason::kNone && imbalance[i] != 0)
      bias[i] -= std::copysign(rate, imbalance[i]);
    imbalance[i] = 0;
  }
}

}  // namespace convene::worker::cpu

#include "worker_runtime/optimizer/clip.h"

#include <cmath>

#include "absl/strings/str_format.h"
#include "tools/base/check.h"

namespace convene::worker {

ClipDecision DecideClip(double max_norm, double gradient_norm, int64_t step) {
  CONVENE_CHECK(max_norm >= 0);
  if (!std::isfinite(gradient_norm)) {
    return {.skip_step = true,
            .gradient_scale = 0,
            .why = absl::StrFormat(
                "skipped step %d: the gradient norm is %s; if this repeats, lower the learning "
                "rate or look at the data of this step",
                step, std::isnan(gradient_norm) ? "NaN" : "infinite")};
  }
  if (max_norm == 0) return {};
  const double scale = max_norm / (gradient_norm + 1e-6);
  if (scale >= 1) return {};
  return {.gradient_scale = static_cast<float>(scale)};
}

}  // namespace convene::worker

// PURE. The arithmetic of Activation::kClampedSwiglu that every device shares; of other activations
// nothing is clamped. NaN stays NaN.
#pragma once

#include "worker_runtime/device/dtype.h"
#include "worker_runtime/ops/kinds.h"

namespace convene::worker {

inline constexpr float kClampedSteepness = 1.702f;
inline constexpr float kClampedLimit = 7;

CONVENE_HOST_DEVICE constexpr bool IsGateClamped(Activation activation, float gate) {
  return activation == Activation::kClampedSwiglu && gate > kClampedLimit;
}
CONVENE_HOST_DEVICE constexpr bool IsUpClamped(Activation activation, float up) {
  return activation == Activation::kClampedSwiglu && (up > kClampedLimit || up < -kClampedLimit);
}
CONVENE_HOST_DEVICE constexpr float ClampedGate(Activation activation, float gate) {
  return IsGateClamped(activation, gate) ? kClampedLimit : gate;
}
// The factor of the gate's part.
CONVENE_HOST_DEVICE constexpr float UpFactor(Activation activation, float up) {
  if (activation != Activation::kClampedSwiglu) return up;
  if (IsUpClamped(activation, up)) return 1 + (up > 0 ? kClampedLimit : -kClampedLimit);
  return 1 + up;
}

}  // namespace convene::worker

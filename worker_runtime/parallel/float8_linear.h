// A linear layer's products in 8-bit floats (ops/float8.h): activations and weights in e4m3,
// gradients of outputs in e5m2, each tensor with a scale of its own. A tensor that is split over
// ranks has one scale on all of them, that of the whole, so that every layout rounds alike.
//
//   x  ─ codes ──────┐                 dy ─ codes ──┐                  dy ─ turned ─┐
//   W  ─ codes ──────┴─► y = x W^T     W ─ turned ──┴─► dx = dy W      x ─ turned ──┴─► dW = dy^T x
//
// Scales stay in the device's memory: the host reads none.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "worker_runtime/comm/collective.h"
#include "worker_runtime/device/stream.h"
#include "worker_runtime/ops/float8.h"
#include "worker_runtime/parallel/linear_shape.h"

namespace convene::worker {

// The places of a tensor in 8-bit floats: (rows, columns), turned round (columns, rows), and two
// floats. `largest` lies where collectives may be.
struct Float8Places {
  uint8_t* codes = nullptr;
  uint8_t* turned = nullptr;
  float* largest = nullptr;  // LargestMagnitude of the whole tensor, on all ranks that share it
  float* inverse = nullptr;  // of the scale
};

// The places that a layer's products want in one pass. Borrowed; a cheap value. Without places
// (is_on() is false) the products take T.
struct Float8Layer {
  Float8Places weight;    // (out, in), rounded already
  Float8Places input;     // (rows, in): codes and turned may be one place; largest lasts from the
                          // forward pass to the weight's gradient
  Float8Places gradient;  // (rows, out), of the output: where the weight's gradient comes later,
                          // largest lasts until then
  Collective* tp = nullptr;
  Collective* cp = nullptr;  // whose ranks have other rows

  bool is_on() const { return input.codes != nullptr; }
};

// Whether each tp rank has the whole tensor (but for cp's rows) or some columns of it.
enum class OverTp { kWhole, kSplit };

// y = x W^T. Measures x, and leaves its scale. Errors: the collective's.
template <typename T>
absl::Status Float8Forward(const LinearShape& shape, const T* x, OverTp x_over_tp,
                           const Float8Layer& layer, T* y, Stream& stream);

// Measures and rounds the output's gradient, turned round too where `wants_turned`. Errors: the
// collective's.
template <typename T>
absl::Status Float8TakeGradient(const LinearShape& shape, const T* dy, OverTp dy_over_tp,
                                bool wants_turned, const Float8Layer& layer, Stream& stream);
// The same for a weight's gradient that comes later than the input's, by the scale that the
// input's left: without a collective.
template <typename T>
void Float8TakeGradientAgain(const LinearShape& shape, const T* dy, const Float8Layer& layer,
                             Stream& stream);

// Behind one of these: dx = dy W, overwritten; and dweight gets dy^T x, rounding x anew by the
// scale that the forward pass left.
template <typename T>
void Float8InputGradient(const LinearShape& shape, const Float8Layer& layer, T* dx, Stream& stream);
template <typename T>
void Float8WeightGradient(const LinearShape& shape, const T* x, const WeightGradient& dweight,
                          const Float8Layer& layer, Stream& stream);

}  // namespace convene::worker

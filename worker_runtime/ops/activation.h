// What stands between the two products of a feed-forward network. T: float or BFloat16; arithmetic
// in float.
#pragma once

#include "worker_runtime/device/dtype.h"
#include "worker_runtime/device/stream.h"

namespace convene::worker {

// With s the logistic function and g(x) = 2 sqrt(2 / pi) (x + 0.044715 x^3):
enum class Activation {
  kSwiglu,  // gate s(gate) up (Shazeer 2020)
  kGeglu,   // gate s(g(gate)) up: the same with the next one's GELU
  kGelu,    // x s(g(x)): GELU by tanh (Hendrycks and Gimpel 2016; "gelu_new", "gelu_pytorch_tanh")
};

// Inputs of an output.
constexpr int ActivationInputs(Activation activation) {
  return activation == Activation::kGelu ? 1 : 2;
}

// x: (rows, ActivationInputs * width), gates before ups; y: (rows, width).
template <typename T>
void ActivationForward(Activation activation, int rows, int width, const T* x, T* y,
                       Stream& stream);

// dx: as x, overwritten; may be x itself.
template <typename T>
void ActivationBackward(Activation activation, int rows, int width, const T* x, const T* dy, T* dx,
                        Stream& stream);

}  // namespace convene::worker

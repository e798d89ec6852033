// PURE. The kinds of ops among which a model's configuration chooses.
#pragma once

namespace convene::worker {

// Norms of the residual stream, over its last axis.
enum class NormKind {
  kRms,         // ops/rms_norm.h
  kRmsPlusOne,  // the same with an offset of 1
  kLayer,       // ops/layer_norm.h
  kNone,        // the values as they are
};

// RMSNorm's offset.
constexpr float WeightOffset(NormKind kind) { return kind == NormKind::kRmsPlusOne ? 1 : 0; }

// Activations stand between the two products of a feed-forward network (ops/activation.h). With s
// the logistic function and g(x) = 2 sqrt(2 / pi) (x + 0.044715 x^3):
enum class Activation {
  kSwiglu,  // gate s(gate) up (Shazeer 2020)
  kGeglu,   // gate s(g(gate)) up: the same with the next one's GELU
  // g s(1.702 g) (u + 1), with g = min(gate, 7), and u = up between -7 and 7 (gpt-oss, 2025)
  kClampedSwiglu,
  kGelu,  // x s(g(x)): GELU by tanh (Hendrycks and Gimpel 2016; "gelu_new", "gelu_pytorch_tanh")
};

// Inputs of an output.
constexpr int ActivationInputs(Activation activation) {
  return activation == Activation::kGelu ? 1 : 2;
}

// The most experts among which a router chooses.
inline constexpr int kRouterExpertsMax = 512;

// A router's scores, made of experts' logits. A bias comes to them in the choice alone.
enum class RouterScore {
  kSoftmax,  // over all experts
  kSigmoid,  // of each expert alone (DeepSeek-V3)
};

}  // namespace convene::worker

// PURE. The choice of a model's matrices that get low-rank adapters, and the size of these (LoRA;
// Hu et al. 2021).
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace convene::worker {

struct AdapterConfig {
  int rank = 0;  // 0: the model has no adapters, and all of its weights learn
  double alpha = 0;
  bool rank_stabilized = false;  // the scale's, below
  // In training, that an input number of an adapter becomes 0; from 0 to below 1. Matrices that
  // share their input share the mask.
  double dropout = 0;
  // A matrix is a target whose name (without ".weight") is one of these, or ends with a point and
  // one of these, as in PEFT's target_modules; the number of an expert is written "*", for experts
  // have adapters all alike. Empty: all matrices of blocks but routers and experts.
  std::vector<std::string> targets;

  bool is_on() const { return rank > 0; }
  // Of what an adapter adds: alpha / rank, or alpha / sqrt(rank) where it is rank-stabilized
  // (Kalajdzievski 2023, "rsLoRA").
  double scale() const;
  friend bool operator==(const AdapterConfig&, const AdapterConfig&) = default;
};

// "*" in place of an expert's number: "mlp.experts.*.up_proj" of "mlp.experts.7.up_proj".
std::string OfAnyExpert(absl::string_view name);

// `name`: without ".weight". False where the model has no adapters.
bool IsTarget(const AdapterConfig& config, absl::string_view name);

// The names of an adapter's two matrices, of the matrix `name` (without ".weight"), as PEFT's files
// have them behind "base_model.model.".
std::string AdapterA(absl::string_view name);
std::string AdapterB(absl::string_view name);

}  // namespace convene::worker

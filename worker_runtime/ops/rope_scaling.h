// PURE. How rotary positions reach further than the context that a model was first trained with.
#pragma once

namespace convene::worker {

// The ways; Hugging Face's rope_scaling has a type for each, and its keys are named below.
enum class RopeScalingKind {
  kLlama3,  // "llama3": a straight line between the two bounds, over the number of waves
  kLinear,  // "linear": all frequencies are divided by `factor`
  // "yarn" (Peng et al. 2023, section 3.2): a straight line over the frequencies' numbers, between
  // the numbers that have so many waves. Queries and keys are scaled too (RopeAmplitude).
  kYarn,
};

// A frequency whose wave is long beside original_positions is divided by `factor`, one whose wave
// is short stays.
struct RopeScaling {
  double factor = 1;  // factor; 1 = no scaling
  RopeScalingKind kind = RopeScalingKind::kLlama3;
  // low_freq_factor, YaRN's beta_slow: waves longer than original / low are scaled
  double low_frequency_factor = 1;
  // high_freq_factor, YaRN's beta_fast (32): waves shorter than original / high stay
  double high_frequency_factor = 4;
  int original_positions = 8192;  // original_max_position_embeddings
  // YaRN's alone.
  double amplitude =
      0;  // attention_factor; 0: it follows from the two below, and these from factor
  double mscale = 0;
  double mscale_all_dim = 0;
  bool truncates = true;  // truncate: the numbers between which the line runs are whole
  friend bool operator==(const RopeScaling&, const RopeScaling&) = default;
};

}  // namespace convene::worker

// PURE. How rotary positions reach further than the context that a model was first trained with.
#pragma once

namespace convene::worker {

// Llama 3.1's way; in Hugging Face's rope_scaling it has the type "llama3", and its keys are named
// below. A frequency whose wave is long beside original_positions is divided by `factor`, one whose
// wave is short stays, and between the two lies a straight line.
struct RopeScaling {
  double factor = 1;                 // factor; 1 = no scaling
  bool is_linear = false;            // all frequencies are divided (type "linear")
  double low_frequency_factor = 1;   // low_freq_factor: waves longer than original / low are scaled
  double high_frequency_factor = 4;  // high_freq_factor: waves shorter than original / high stay
  int original_positions = 8192;     // original_max_position_embeddings
  friend bool operator==(const RopeScaling&, const RopeScaling&) = default;
};

}  // namespace convene::worker

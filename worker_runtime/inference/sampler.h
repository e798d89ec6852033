// PURE. The next token of a sequence from the logits behind its last one, as Hugging Face's
// transformers choose it (generation/logits_process.py): the penalty of repetition, then, unless
// the largest score is to be taken, temperature, top-k, top-p and min-p in this order.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace convene::worker {

struct SamplingOptions {
  double temperature = 0;  // scores are divided by it; 0: the largest score, the first of equals
  // Scores of tokens that the sequence has are divided by it, or multiplied where they are negative
  // (Keskar et al. 2019, CTRL, section 4.1).
  double repetition_penalty = 1;
  int top_k = 0;     // only the k largest, and those equal to the least of them; 0: all
  double top_p = 1;  // only the fewest most likely tokens whose probabilities add up to it
  double min_p = 0;  // only tokens with so much of the largest probability
  uint64_t seed = 0;
};

// InvalidArgument names the number that makes no sense, by its flag.
absl::Status ValidateSampling(const SamplingOptions& options);

// In (0, 1): the number that chooses the token `place` of the sequence `sequence`, whatever is
// generated beside it.
double SamplingNumber(uint64_t seed, uint64_t sequence, uint64_t place);

// In nats, as the model has it, whatever the options.
struct LogProbability {
  int32_t token = 0;
  double value = 0;
};

// Of the token, then of the `top` likeliest ones, the first of equals first. REQUIRES: logits that
// are numbers.
std::vector<LogProbability> LogProbabilities(absl::Span<const float> logits, int32_t token,
                                             int top);

// `logits` are changed. `tokens`: the sequence so far. `number`: SamplingNumber's. REQUIRES: valid
// options, and logits that are numbers.
int32_t Sample(const SamplingOptions& options, absl::Span<const int32_t> tokens, double number,
               absl::Span<float> logits);

}  // namespace convene::worker

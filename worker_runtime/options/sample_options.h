// PURE. The texts that a model makes between steps of its training.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace convene::worker {

struct SampleOptions {
  int64_t every = 0;  // steps; 0: there are no texts
  std::vector<std::string> prompts;
  int tokens = 1;  // the most new ones of each text
  double temperature = 0;
  // The tokens of each prompt, which LoadRunTokenizer (trainer/run_data.h) fills in.
  std::vector<std::vector<int32_t>> ids;
};

// The memory in which texts are made.
struct SampleRoom {
  int sequences = 0;  // texts at once; 0: none is ever made
  int context = 0;    // the most tokens of one, prompt included
  int pass_tokens = 0;
};

// InvalidArgument names the key, its value and the legal ones.
absl::Status ValidateSamples(const SampleOptions& samples);

// REQUIRES: ValidateSamples said OK, and `ids` are filled in where texts are made.
SampleRoom RoomOf(const SampleOptions& samples);

}  // namespace convene::worker

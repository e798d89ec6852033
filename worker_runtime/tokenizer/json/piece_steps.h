// The steps of a pre-tokenizer. Each is what the part of the same name in Hugging Face's tokenizers
// does (tokenizers/src/pre_tokenizers).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "worker_runtime/tokenizer/json/pre_tokenizer.h"

namespace convene::worker {

// Adds the steps of the part `type`, which is no Sequence. InvalidArgument, Unimplemented.
absl::Status AddPreTokenizerSteps(const std::string& type, const JsonNode& node,
                                  std::vector<std::unique_ptr<PreTokenizerStep>>* steps);

}  // namespace convene::worker

// PURE. adapter_config.json of PEFT (huggingface/peft 0.18, tuners/lora/config.py).
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker_runtime/model/adapter.h"

namespace convene::worker {

struct PeftConfig {
  AdapterConfig adapter;  // without targets: the file's tensors say which matrices have adapters
  std::string base;       // base_model_name_or_path
};

// InvalidArgument: no such text, no LoRA. Unimplemented, with the key: another kind of LoRA than
// ours (DoRA, ranks by pattern, biases or whole modules that learn, adapters of fused experts).
absl::StatusOr<PeftConfig> ReadPeftConfig(absl::string_view text);

// `targets`: for target_modules, the ends of the matrices' names.
// `turned_matrices`: the base keeps its matrices as [in, out] (GPT-2).
std::string WritePeftConfig(const PeftConfig& config, const std::vector<std::string>& targets,
                            bool turned_matrices);

}  // namespace convene::worker

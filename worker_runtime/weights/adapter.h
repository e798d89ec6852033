// Low-rank adapters of a model (LoRA), from wherever they lie: PEFT's folders, and checkpoints of
// runs that trained adapters.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker_runtime/checkpoint/state_source.h"
#include "worker_runtime/model/config.h"

namespace convene::worker {

inline constexpr char kPeftConfigName[] = "adapter_config.json";
inline constexpr char kPeftWeightsName[] = "adapter_model.safetensors";
// Before each name in that file.
inline constexpr char kPeftPrefix[] = "base_model.model.";

struct Adapter {
  AdapterConfig config;
  std::string base;  // where the weights lie beside which it was trained; "": it does not say
  absl::StatusOr<std::string> tokenizer = std::string();  // its own, as Weights::tokenizer
  // Every A and B, under the names of model/adapter.h, with its shape.
  std::map<std::string, std::array<int64_t, 2>> tensors;
  std::unique_ptr<StateSource> source;
};

// Whether the path is PEFT's folder.
bool IsPeftFolder(const std::string& path);

// `path`: PEFT's folder, or a checkpoint as OpenWeights (open_weights.h) takes them. Reads no
// weights.
//
// NotFound: nothing of these. InvalidArgument: a damaged file; a tensor that is no A or B, or
// has no other half; a checkpoint without adapters. Unimplemented: ReadPeftConfig's, one adapter of
// all experts of a layer, and an element type that we lack. All with the path.
absl::StatusOr<Adapter> OpenAdapter(const std::string& path);

// Whether the adapter's tensors are those of model.adapter, as they are and no others.
// InvalidArgument names a tensor, and what the model wants.
absl::Status CheckAdapterFits(const Adapter& adapter, const ModelConfig& model);

// The names of the matrices that have adapters, behind the layer's number and without ".weight",
// each once, as AdapterConfig::targets has them: "self_attn.q_proj", "mlp.experts.*.up_proj".
std::vector<std::string> MatrixEnds(const Adapter& adapter);

}  // namespace convene::worker

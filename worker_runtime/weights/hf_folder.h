// A folder as Hugging Face's transformers writes it: config.json, and tensors in safetensors.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker_runtime/weights/open_weights.h"

namespace convene::worker {

inline constexpr char kHfConfigName[] = "config.json";
inline constexpr char kHfWeightsName[] = "model.safetensors";
inline constexpr char kHfIndexName[] = "model.safetensors.index.json";

// The tensors stand in model.safetensors, or in the files that model.safetensors.index.json names.
// An index that names other files alone is of an earlier save where model.safetensors is there, and
// is passed over, as in transformers. The tensors are mapped, in F32, F16 or BF16, and a reader
// touches the elements alone that it wants: other types are converted, GPT-2's matrices turned
// round. Names with and without the base model's prefix are known. The files must not be cut while
// the source lives.
//
// InvalidArgument, with the file: what ReadHfConfig and safetensors.h refuse; a file that the index
// names and that is not there; a tensor that is missing, of another shape than config.json says, or
// not the model's; a head that differs from the table to which config.json ties it. Unimplemented:
// ReadHfConfig's, and a tensor of another type. Else as tools/base/files.h.
absl::StatusOr<Weights> OpenHfFolder(const std::string& path);

// Whether a folder with these files has a tokenizer that can be loaded from it. A tiktoken.model
// (Kimi) counts for none: its pattern stands in Python code, so that whoever wants the tokenizer
// names it, and nobody else is stopped by it.
bool HasTokenizer(const std::vector<std::string>& names);

// Its config.json alone.
absl::StatusOr<ModelConfig> ReadHfShape(const std::string& path);

}  // namespace convene::worker

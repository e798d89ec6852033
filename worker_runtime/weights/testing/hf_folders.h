// Small folders as transformers writes them, for tests. The test has Catch2's main.
#pragma once

#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tools/base/files.h"
#include "tools/base/testing/status_testing.h"
#include "worker_runtime/model/config.h"
#include "worker_runtime/model/parameters.h"
#include "worker_runtime/weights/hf_config.h"
#include "worker_runtime/weights/safetensors.h"

namespace convene::worker::testing {

// The model's own tensors: names, shapes, and other values everywhere.
struct FolderTensor {
  std::vector<int64_t> shape;
  std::vector<float> values;
  bool is_matrix = false;  // of a layer
};
using FolderTensors = std::map<std::string, FolderTensor>;

inline FolderTensors TensorsOf(const ModelConfig& config) {
  FolderTensors tensors;
  float next = 0;
  const ModelChunk whole = {.layers = config.layers, .has_embedding = true, .has_head = true};
  for (const UnitSpec& unit : UnitsOf(config, whole, 1, 0)) {
    for (const UnitTensor& tensor : unit.tensors) {
      for (const ParameterSlice& slice : tensor.slices) {
        auto& made = tensors[slice.name];
        if (!made.values.empty()) continue;
        const auto [rows, columns] = slice.global_shape;
        const bool is_vector = rows == 1 && !slice.decayed;
        made.shape = is_vector ? std::vector{columns} : std::vector{rows, columns};
        made.is_matrix = slice.is_matrix();
        for (int64_t i = 0; i < rows * columns; ++i) made.values.push_back(next += 0.25f);
      }
    }
  }
  return tensors;
}

inline FolderTensor Turned(const FolderTensor& tensor) {
  FolderTensor turned = {.shape = {tensor.shape[1], tensor.shape[0]}};
  for (int64_t column = 0; column < tensor.shape[1]; ++column) {
    for (int64_t row = 0; row < tensor.shape[0]; ++row) {
      turned.values.push_back(tensor.values[row * tensor.shape[1] + column]);
    }
  }
  return turned;
}

// gpt-oss' experts side by side: [expert, in, out], gate and up in turn.
inline FolderTensors WithExpertsTogether(const ModelConfig& config, FolderTensors tensors) {
  const int64_t count = config.experts.count;
  for (int layer = 0; layer < config.layers; ++layer) {
    const std::string experts = absl::StrCat("model.layers.", layer, ".mlp.experts.");
    for (const std::string matrix : {"gate_proj", "up_proj", "down_proj"}) {
      const bool is_down = matrix == "down_proj";
      const int64_t in = is_down ? config.experts.ffn_size : config.hidden_size;
      const int64_t out = is_down ? config.hidden_size : 2 * config.experts.ffn_size;
      const std::string name = experts + (is_down ? "down_proj" : "gate_up_proj");
      FolderTensor& together = tensors[name];
      FolderTensor& biases = tensors[name + "_bias"];
      together.shape = {count, in, out};
      together.values.resize(count * in * out);
      biases.shape = {count, out};
      biases.values.resize(count * out);
      for (int64_t expert = 0; expert < count; ++expert) {
        const std::string own = absl::StrCat(experts, expert, ".", matrix);
        const std::vector<float> weight = tensors.at(own + ".weight").values;
        const std::vector<float> bias = tensors.at(own + ".bias").values;
        for (size_t row = 0; row < bias.size(); ++row) {
          const int64_t column = is_down ? row : 2 * row + (matrix == "up_proj" ? 1 : 0);
          biases.values[expert * out + column] = bias[row];
          for (int64_t i = 0; i < in; ++i) {
            together.values[(expert * in + i) * out + column] = weight[row * in + i];
          }
        }
        tensors.erase(own + ".weight");
        tensors.erase(own + ".bias");
      }
    }
  }
  return tensors;
}

// As the family's files have them.
inline FolderTensors AsFiles(const ModelConfig& config, FolderTensors tensors) {
  if (config.family->keys.gate_up != nullptr) return WithExpertsTogether(config, tensors);
  if (!config.family->keys.turned_matrices) return tensors;
  for (auto& [name, tensor] : tensors) {
    if (tensor.is_matrix && tensor.shape.size() == 2) tensor = Turned(tensor);
  }
  return tensors;
}

inline void WriteSafeTensors(const std::string& path, const FolderTensors& tensors) {
  std::vector<SafeTensor> list;
  std::string data;
  for (const auto& [name, tensor] : tensors) {
    list.push_back({.name = name, .type = "F32", .shape = tensor.shape});
    data.append(reinterpret_cast<const char*>(tensor.values.data()),
                tensor.values.size() * sizeof(float));
  }
  const std::string header = MakeSafeTensorsHeader(&list);
  REQUIRE_OK(WriteFileAtomic(path, header + data));
}

inline void WriteHfFolder(const std::string& path, const ModelConfig& config,
                          const FolderTensors& tensors) {
  REQUIRE_OK(MakeDirectories(path));
  const auto text = WriteHfConfig(config, {});
  REQUIRE_OK(text.status());
  REQUIRE_OK(WriteFileAtomic(path + "/config.json", *text));
  WriteSafeTensors(path + "/model.safetensors", AsFiles(config, tensors));
}

}  // namespace convene::worker::testing

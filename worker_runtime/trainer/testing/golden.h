// The golden files of PyTorch's numbers (golden/make_golden.py), for tests.
#pragma once

#include <google/protobuf/struct.pb.h>
#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "tools/base/files.h"
#include "tools/base/status_macros.h"
#include "tools/base/testing/status_testing.h"
#include "worker_runtime/trainer/engine.h"

namespace convene::worker::testing {

// A safetensors file in memory.
class Golden {
 public:
  explicit Golden(const std::string& name) {
    auto bytes = ReadFile("worker_runtime/trainer/testing/golden/" + name + ".safetensors");
    REQUIRE_OK(bytes.status());
    bytes_ = *std::move(bytes);
    uint64_t header_bytes = 0;
    std::memcpy(&header_bytes, bytes_.data(), sizeof(header_bytes));
    begin_ = sizeof(header_bytes) + header_bytes;
    REQUIRE(begin_ <= bytes_.size());
    const std::string header = bytes_.substr(sizeof(header_bytes), header_bytes);
    REQUIRE(google::protobuf::util::JsonStringToMessage(header, &header_).ok());
  }

  bool HasMetadata(const std::string& key) const {
    return Item("__metadata__").fields().contains(key);
  }
  double Metadata(const std::string& key) const {
    double value = 0;
    REQUIRE(absl::SimpleAtod(Item("__metadata__").fields().at(key).string_value(), &value));
    return value;
  }
  std::vector<int64_t> Shape(const std::string& name) const {
    return Numbers(Item(name).fields().at("shape"));
  }
  template <typename T>
  std::vector<T> Values(const std::string& name) const {
    const std::vector<int64_t> range = Numbers(Item(name).fields().at("data_offsets"));
    std::vector<T> values((range.at(1) - range.at(0)) / sizeof(T));
    std::memcpy(values.data(), bytes_.data() + begin_ + range.at(0), values.size() * sizeof(T));
    return values;
  }

  // The named model of the family.
  std::string TinyOfFamily() const {
    const std::string family =
        HasMetadata("family") ? Item("__metadata__").fields().at("family").string_value() : "llama";
    if (family == "deepseek_v2") return "deepseek-v2-tiny";
    if (family == "deepseek_v3") return "mla-tiny";
    if (family == "deepseek_moe") return "deepseek-tiny";
    if (family == "qwen2_moe") return "qwen2-moe-tiny";
    if (family == "glm4_moe") return "glm4-moe-tiny";
    if (family == "mixtral") return "moe-tiny";
    if (family == "qwen3_moe") return "qwen3-moe-tiny";
    if (family == "gpt_oss") return "gpt-oss-tiny";
    if (family == "seed_oss") return "seed-oss-tiny";
    return family == "gemma3_text" ? "gemma3-tiny" : absl::StrCat(family, "-tiny");
  }

  // The start, by the tensors' names.
  std::map<std::string, std::vector<float>> Weights() const {
    std::map<std::string, std::vector<float>> weights;
    for (const auto& [name, item] : header_.fields()) {
      const absl::string_view key = name;
      if (absl::StartsWith(key, "weight/")) weights[name.substr(7)] = Values<float>(name);
    }
    return weights;
  }
  ModelConfig Model() const {
    const auto integer = [&](const char* key) { return static_cast<int>(Metadata(key)); };
    ModelConfig model;
    model.layers = integer("layers");
    model.hidden_size = integer("hidden_size");
    model.ffn_size = integer("ffn_size");
    model.heads = integer("heads");
    model.kv_heads = integer("kv_heads");
    model.head_size = integer("head_size");
    model.vocabulary_size = integer("vocabulary_size");
    model.rope_theta = Metadata("rope_theta");
    model.norm_epsilon = Metadata("norm_epsilon");
    model.tied_embeddings = integer("tied_embeddings") != 0;
    if (!HasMetadata("family")) return model;
    model.positions = integer("positions");
    model.sliding_window = integer("sliding_window");
    model.family = NamedModel(TinyOfFamily())->family;
    // From here on as make_family_golden.py says.
    if (const ModelConfig tiny = *NamedModel(TinyOfFamily()); tiny.experts.count > 0) {
      const bool has_shared = tiny.experts.shared_ffn_size > 0;
      const bool has_groups = model.family->router_groups;
      model.experts = {.count = 4,
                       .chosen = 2,
                       .ffn_size = 12,
                       .shared_ffn_size = has_shared ? 12 : 0,
                       .first_dense_layers = has_groups ? 1 : 0,
                       .groups = has_groups ? 2 : 1,
                       .weight_scale = has_groups ? 2.5 : 1.0};
    }
    if (model.family->has_multipliers) model.multipliers = {3, 0.2, 0.3, 2.5};
    if (model.family->has_partial_rotary) model.rotary_size = 4;
    if (model.family->latent_attention) {
      model.rotary_size = 4;
      model.query_rank = model.family->groups_by_best ? 0 : 24;
      model.key_rank = 16;
      model.value_size = 6;
      model.rope_scaling = {.factor = 4,
                            .kind = RopeScalingKind::kYarn,
                            .high_frequency_factor = 4,
                            .original_positions = 16,
                            .mscale = 1,
                            .mscale_all_dim = 0.5};
    }
    if (model.family->names.sinks != nullptr) {
      model.rope_scaling = {.factor = 4,
                            .kind = RopeScalingKind::kYarn,
                            .high_frequency_factor = 4,
                            .original_positions = 16,
                            .truncates = false};
    }
    if (model.family->has_window_theta) {
      model.window_rope_theta = model.rope_theta;
      model.rope_scaling = {.factor = 4,
                            .kind = RopeScalingKind::kYarn,
                            .high_frequency_factor = 4,
                            .original_positions = 16};
    }
    if (!model.family->has_caps) return model;
    model.query_scalar = 20;
    if (!model.family->query_key_norms) {
      model.score_cap = 0.5;
      model.logit_cap = 1.5;
      return model;
    }
    model.window_rope_theta = 500;
    model.rope_scaling = {.factor = 8, .kind = RopeScalingKind::kLinear};
    return model;
  }

 private:
  const google::protobuf::Struct& Item(const std::string& name) const {
    INFO(name);
    REQUIRE(header_.fields().contains(name));
    return header_.fields().at(name).struct_value();
  }
  static std::vector<int64_t> Numbers(const google::protobuf::Value& list) {
    std::vector<int64_t> numbers;
    for (const auto& value : list.list_value().values()) {
      numbers.push_back(static_cast<int64_t>(value.number_value()));
    }
    return numbers;
  }

  std::string bytes_;
  size_t begin_ = 0;
  google::protobuf::Struct header_;
};

// Llamas, and one of each other family: golden/make_golden.py and make_family_golden.py wrote them.
inline constexpr const char* kGoldenModels[] = {
    "untied",       "tied",        "packed",      "qwen2",    "qwen3",     "gpt2",
    "mistral",      "gemma3_text", "deepseek_v3", "gemma2",   "mixtral",   "qwen3_moe",
    "deepseek_moe", "deepseek_v2", "gpt_oss",     "glm4_moe", "qwen2_moe", "smollm3",
    "phi3",         "seed_oss",    "granite",     "olmo2",    "olmo3"};

// The values of a slice, from those of its tensor.
inline std::vector<float> BoxOf(const std::vector<float>& tensor, const ParameterSlice& slice) {
  std::vector<float> box;
  for (int64_t row = 0; row < slice.extent[0]; ++row) {
    const auto begin = tensor.begin() + (slice.offset[0] + row) * slice.global_shape[1];
    box.insert(box.end(), begin + slice.offset[1], begin + slice.offset[1] + slice.extent[1]);
  }
  return box;
}

// Gives an engine, of any layout, the weights of these tensors. Every rank calls it.
inline absl::Status SetWeights(const std::map<std::string, std::vector<float>>& weights,
                               Engine& engine) {
  CONVENE_ASSIGN_OR_RETURN(const std::vector<PieceToRead> pieces,
                           engine.optimizer().PiecesToRead());
  for (const auto& [piece, data] : pieces) {
    if (absl::StartsWith(piece.name, "optimizer.")) continue;
    const auto found = weights.find(piece.name);
    if (found == weights.end()) return absl::NotFoundError(piece.name);
    for (int64_t i = 0; i < piece.flat_count; ++i) {
      const int64_t place = piece.flat_begin + i;
      const int64_t columns = piece.local_box.extent[1];
      const int64_t row = piece.local_box.offset[0] + place / columns;
      const int64_t column = piece.local_box.offset[1] + place % columns;
      data.As<float>()[i] = found->second[row * piece.global_shape[1] + column];
    }
  }
  return engine.optimizer().FinishRead();
}

inline double Largest(const std::vector<float>& values) {
  double largest = 0;
  for (const float value : values) largest = std::max(largest, std::abs(double{value}));
  return largest;
}

}  // namespace convene::worker::testing

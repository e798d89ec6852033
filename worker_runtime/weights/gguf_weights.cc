#include "worker_runtime/weights/gguf_weights.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tools/base/status_macros.h"
#include "tools/base/text.h"
#include "worker_runtime/data/store/mapped_file.h"
#include "worker_runtime/gguf/gguf_file.h"
#include "worker_runtime/model/shape_text.h"
#include "worker_runtime/ops/rope_frequencies.h"
#include "worker_runtime/weights/model_tensors.h"

namespace convene::worker {
namespace {

// Elements that a piece has at most, but for a longer row.
constexpr int64_t kPieceElements = int64_t{1} << 18;
constexpr size_t kShownName = 100;
constexpr absl::string_view kRopeFactors = "rope_freqs.weight";
constexpr char kInstead[] = ": take the model's Hugging Face folder";

using TensorsByName = absl::flat_hash_map<absl::string_view, const GgufTensor*>;

struct Architecture {
  absl::string_view name;  // general.architecture
  const char* family;
  // Rows of a query's or key's head stand as rotary pairs, where ours are halves (llama.cpp's
  // convert_hf_to_gguf.py, LlamaModel.permute).
  bool has_pairs = false;
};
constexpr Architecture kArchitectures[] = {
    {"llama", "llama", true}, {"qwen2", "qwen2"}, {"qwen3", "qwen3"}};

struct TensorName {
  absl::string_view gguf;
  const char* TensorNames::*ours;
};
constexpr TensorName kNames[] = {{"token_embd", &TensorNames::embedding},
                                 {"output_norm", &TensorNames::final_norm},
                                 {"output", &TensorNames::head}};
constexpr TensorName kLayerNames[] = {{"attn_norm", &TensorNames::attention_norm},
                                      {"attn_q", &TensorNames::query},
                                      {"attn_k", &TensorNames::key},
                                      {"attn_v", &TensorNames::value},
                                      {"attn_output", &TensorNames::attention_out},
                                      {"attn_q_norm", &TensorNames::query_norm},
                                      {"attn_k_norm", &TensorNames::key_norm},
                                      {"ffn_norm", &TensorNames::mlp_norm},
                                      {"ffn_gate", &TensorNames::gate},
                                      {"ffn_up", &TensorNames::up},
                                      {"ffn_down", &TensorNames::down}};

// A number that the file has as a float: 1e-5f stands for 1e-5, which is another double.
absl::StatusOr<double> ShortReal(const GgufFile& file, absl::string_view key) {
  CONVENE_ASSIGN_OR_RETURN(double value, file.Real(key));
  const bool is_number = absl::SimpleAtod(absl::StrCat(static_cast<float>(value)), &value);
  if (is_number && std::isfinite(value)) return value;
  return absl::InvalidArgumentError(absl::StrCat("the GGUF file's '", key, "' is no number"));
}

absl::StatusOr<int> CountOr(const GgufFile& file, const std::string& key, int otherwise) {
  return file.Has(key) ? file.Count(key) : otherwise;
}

// Llama 3.1's scaling, from the numbers by which llama.cpp divides the frequencies
// (convert_hf_to_gguf.py, LlamaModel.generate_extra_tensors). The file does not tell the settings
// that these came from: the published models' are tried.
absl::StatusOr<RopeScaling> ScalingOfFactors(const GgufFile& file, const std::string& prefix,
                                             const GgufTensor& tensor, int head_size,
                                             double theta) {
  std::vector<float> factors(tensor.bytes.size() / tensor.type->bytes * tensor.type->elements);
  DecodeBlocks(*tensor.type, tensor.bytes, factors.data());
  RopeScaling scaling;
  CONVENE_ASSIGN_OR_RETURN(
      scaling.original_positions,
      CountOr(file, prefix + "rope.scaling.original_context_length", scaling.original_positions));
  if (!factors.empty()) scaling.factor = *std::max_element(factors.begin(), factors.end());
  const std::vector<double> plain = RopeFrequencies(head_size, theta, {});
  const std::vector<double> scaled = RopeFrequencies(head_size, theta, scaling);
  bool is_same = factors.size() == plain.size();
  for (size_t i = 0; is_same && i < plain.size(); ++i) {
    is_same = std::abs(factors[i] * scaled[i] / plain[i] - 1) < 1e-4;
  }
  if (is_same) return scaling;
  return absl::UnimplementedError(absl::StrCat("the GGUF file's tensor '", kRopeFactors,
                                               "' has other factors than Llama 3's", kInstead));
}

absl::StatusOr<RopeScaling> ScalingOf(const GgufFile& file, const std::string& prefix,
                                      int head_size, double theta) {
  const std::string type_key = absl::StrCat(prefix, "rope.scaling.type");
  RopeScaling scaling;
  for (const GgufTensor& tensor : file.tensors()) {
    if (tensor.name == kRopeFactors) {
      return ScalingOfFactors(file, prefix, tensor, head_size, theta);
    }
    if (!absl::StartsWith(tensor.name, "rope_")) continue;
    return absl::UnimplementedError(absl::StrCat("the GGUF file's tensor '",
                                                 Utf8(tensor.name, kShownName),
                                                 "' (factors of rotary positions)", kInstead));
  }
  // A file that names no type has the linear one, and older files name the factor otherwise
  // (llama.cpp's llama_model::load_hparams).
  absl::string_view type = "linear";
  if (file.Has(type_key)) {
    CONVENE_ASSIGN_OR_RETURN(type, file.Text(type_key));
  }
  if (type == "none") return scaling;
  if (type != "linear") {
    return absl::UnimplementedError(
        absl::StrCat("the GGUF file's ", type_key, " '", Utf8(type, 50), "'", kInstead));
  }
  std::string key = absl::StrCat(prefix, "rope.scaling.factor");
  if (!file.Has(key)) key = absl::StrCat(prefix, "rope.scale_linear");
  if (!file.Has(key)) return scaling;
  CONVENE_ASSIGN_OR_RETURN(const double factor, ShortReal(file, key));
  if (factor == 0) return scaling;
  scaling.kind = RopeScalingKind::kLinear;
  scaling.factor = factor;
  return scaling;
}

absl::StatusOr<ModelConfig> ConfigOf(const GgufFile& file, const Architecture& architecture,
                                     const TensorsByName& tensors) {
  const std::string prefix = absl::StrCat(architecture.name, ".");
  const auto key = [&](absl::string_view name) { return absl::StrCat(prefix, name); };
  ModelConfig config;
  config.family = FamilyNamed(architecture.family);
  CONVENE_ASSIGN_OR_RETURN(config.layers, file.Count(key("block_count")));
  CONVENE_ASSIGN_OR_RETURN(config.hidden_size, file.Count(key("embedding_length")));
  CONVENE_ASSIGN_OR_RETURN(config.ffn_size, file.Count(key("feed_forward_length")));
  CONVENE_ASSIGN_OR_RETURN(config.heads, file.Count(key("attention.head_count")));
  CONVENE_ASSIGN_OR_RETURN(config.kv_heads,
                           CountOr(file, key("attention.head_count_kv"), config.heads));
  CONVENE_ASSIGN_OR_RETURN(
      config.head_size,
      CountOr(file, key("attention.key_length"), config.hidden_size / std::max(1, config.heads)));
  CONVENE_ASSIGN_OR_RETURN(config.norm_epsilon,
                           ShortReal(file, key("attention.layer_norm_rms_epsilon")));
  if (file.Has(key("rope.freq_base"))) {
    CONVENE_ASSIGN_OR_RETURN(config.rope_theta, ShortReal(file, key("rope.freq_base")));
  }
  CONVENE_ASSIGN_OR_RETURN(const int rotary,
                           CountOr(file, key("rope.dimension_count"), config.head_size));
  CONVENE_ASSIGN_OR_RETURN(config.rope_scaling,
                           ScalingOf(file, prefix, config.head_size, config.rope_theta));
  if (rotary != config.head_size && architecture.has_pairs) {
    return absl::UnimplementedError(absl::StrCat("the GGUF file's '", key("rope.dimension_count"),
                                                 "' is ", rotary, ", and its heads have ",
                                                 config.head_size, " elements", kInstead));
  }
  if (rotary != config.head_size) config.rotary_size = rotary;
  for (const char* const name : {"expert_count", "attention.sliding_window", "attention.scale",
                                 "attention.clamp_kqv", "use_parallel_residual"}) {
    if (file.Has(key(name))) {
      return absl::UnimplementedError(absl::StrCat("the GGUF file's '", key(name), "'", kInstead));
    }
  }
  const auto table = tensors.find("token_embd.weight");
  if (table == tensors.end()) {
    return absl::InvalidArgumentError("the GGUF file lacks the tensor 'token_embd.weight'");
  }
  config.vocabulary_size = static_cast<int>(std::min<int64_t>(table->second->shape[0], 1 << 30));
  config.tied_embeddings = !tensors.contains("output.weight");
  return config;
}

// The file's tensor of each of ours.
absl::flat_hash_map<std::string, std::string> NamesOf(const ModelConfig& config) {
  absl::flat_hash_map<std::string, std::string> names;
  const TensorNames& ours = config.family->names;
  const auto add = [&](const TensorName& name, const std::string& our_front,
                       const std::string& front) {
    if (ours.*name.ours == nullptr) return;
    for (const char* const end : {".weight", ".bias"}) {
      names[absl::StrCat(our_front, ours.*name.ours, end)] = absl::StrCat(front, name.gguf, end);
    }
  };
  for (const TensorName& name : kNames) add(name, "", "");
  for (int layer = 0; layer < config.layers; ++layer) {
    for (const TensorName& name : kLayerNames) {
      add(name, absl::StrCat(ours.layers, ".", layer, "."), absl::StrCat("blk.", layer, "."));
    }
  }
  return names;
}

// Where the rows of a tensor of ours lie in the file.
struct Rows {
  const BlockType* type = nullptr;
  absl::string_view bytes;
  int64_t row_bytes = 0;
  int pair_rows = 0;  // rows of a head that stand as pairs; 0: rows stand as ours do

  absl::string_view Row(int64_t row) const {
    int64_t at = row;
    if (pair_rows > 0) {
      const int64_t in_head = row % pair_rows;
      const int64_t half = pair_rows / 2;
      at = row - in_head + 2 * (in_head % half) + in_head / half;
    }
    return bytes.substr(at * row_bytes, row_bytes);
  }
};

class GgufSource final : public StateSource {
 public:
  GgufSource(MappedFile mapped, std::string model)
      : mapped_(std::move(mapped)), info_({.model = std::move(model)}) {}

  // `file`: the mapped file's tensor.
  void Add(const ModelTensor& tensor, const GgufTensor& file, int pair_rows) {
    const BlockType& type = *file.type;
    for (TensorPiece& piece : RunsOf(tensor, kPieceElements)) {
      pieces_.push_back(std::move(piece));
      rows_.push_back({&type, file.bytes, tensor.shape[1] / type.elements * type.bytes, pair_rows});
    }
  }

  const std::string& name() const override { return mapped_.path(); }
  const CheckpointInfo& info() const override { return info_; }

  absl::Status Read(const std::vector<PieceToRead>& pieces) const override {
    std::vector<float> decoded;
    return FillPieces(pieces, name(), pieces_, [&](int i) -> absl::StatusOr<ConstElements> {
      const Box& box = pieces_[i].local_box;
      decoded.resize(pieces_[i].flat_count);
      for (int64_t row = 0; row < box.extent[0]; ++row) {
        DecodeBlocks(*rows_[i].type, rows_[i].Row(box.offset[0] + row),
                     decoded.data() + row * box.extent[1]);
      }
      return ConstElements(absl::MakeConstSpan(decoded));
    });
  }

 private:
  const MappedFile mapped_;
  const CheckpointInfo info_;
  std::vector<TensorPiece> pieces_;
  std::vector<Rows> rows_;  // of pieces_
};

absl::Status CheckShape(const GgufTensor& file, const ModelTensor& tensor) {
  const auto [rows, columns] = tensor.shape;
  const bool is_vector = rows == 1 && file.shape == std::vector<int64_t>{columns};
  if (is_vector || file.shape == std::vector<int64_t>{rows, columns}) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "the GGUF file's tensor '", Utf8(file.name, kShownName), "' has the shape [",
      absl::StrJoin(file.shape, ", "), "], and the model wants [", rows, ", ", columns, "]"));
}

absl::Status AddTensors(const ModelConfig& config, bool has_pairs, TensorsByName files,
                        GgufSource* source) {
  const absl::flat_hash_map<std::string, std::string> names = NamesOf(config);
  const auto is_turned = [&](const std::string& name) {
    return has_pairs && (absl::StrContains(name, config.family->names.query) ||
                         absl::StrContains(name, config.family->names.key));
  };
  for (const ModelTensor& tensor : ModelTensors(config)) {
    const std::string& name = names.at(tensor.name);
    const auto found = files.find(name);
    if (found == files.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("the GGUF file lacks the tensor '", name, "'"));
    }
    CONVENE_RETURN_IF_ERROR(CheckShape(*found->second, tensor));
    source->Add(tensor, *found->second, is_turned(tensor.name) ? config.head_size : 0);
    files.erase(found);
  }
  if (files.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the GGUF file's tensor '",
                                                 Utf8(files.begin()->first, kShownName),
                                                 "' is none of the model's"));
}

// Of a file that llama-gguf-split cut. Parts behind the first have no facts but these.
absl::Status RefusePart(const GgufFile& file) {
  CONVENE_ASSIGN_OR_RETURN(const int parts, CountOr(file, "split.count", 1));
  CONVENE_ASSIGN_OR_RETURN(const int before, CountOr(file, "split.no", 0));
  if (parts <= 1) return absl::OkStatus();
  return absl::UnimplementedError(
      absl::StrCat("it is part ", before + 1, " of ", parts,
                   " of a GGUF file: make one file of them (llama-gguf-split --merge FIRST-PART "
                   "OUTPUT), or take "
                   "the model's Hugging Face folder"));
}

absl::StatusOr<Weights> Open(const MappedFile& mapped) {
  CONVENE_ASSIGN_OR_RETURN(const GgufFile file, GgufFile::Parse(mapped.bytes()));
  CONVENE_RETURN_IF_ERROR(RefusePart(file));
  CONVENE_ASSIGN_OR_RETURN(const absl::string_view name, file.Text("general.architecture"));
  const auto* const architecture =
      std::find_if(std::begin(kArchitectures), std::end(kArchitectures),
                   [&](const Architecture& known) { return known.name == name; });
  if (architecture == std::end(kArchitectures)) {
    return absl::UnimplementedError(absl::StrCat("a GGUF file of architecture '", Utf8(name, 50),
                                                 "' (llama, qwen2 and qwen3 are read here)",
                                                 kInstead));
  }
  TensorsByName tensors;
  for (const GgufTensor& tensor : file.tensors()) {
    if (tensor.name != kRopeFactors) tensors[tensor.name] = &tensor;
  }
  Weights weights;
  CONVENE_ASSIGN_OR_RETURN(weights.config, ConfigOf(file, *architecture, tensors));
  CONVENE_RETURN_IF_ERROR(ValidateModel(weights.config, Layout()));
  auto source = std::make_unique<GgufSource>(mapped, ShapeText(weights.config));
  CONVENE_RETURN_IF_ERROR(
      AddTensors(weights.config, architecture->has_pairs, std::move(tensors), source.get()));
  weights.source = std::move(source);
  if (file.Has("tokenizer.ggml.model")) weights.tokenizer = mapped.path();
  CONVENE_ASSIGN_OR_RETURN(weights.longest_text,
                           CountOr(file, absl::StrCat(architecture->name, ".context_length"), 0));
  return weights;
}

}  // namespace

absl::StatusOr<Weights> OpenGgufWeights(const std::string& path) {
  CONVENE_ASSIGN_OR_RETURN(const MappedFile mapped, MappedFile::Open(path));
  absl::StatusOr<Weights> weights = Open(mapped);
  if (!weights.ok()) return Annotate(weights.status(), path);
  return weights;
}

}  // namespace convene::worker

#include "worker_runtime/weights/hf_folder.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "tools/base/files.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/data/store/mapped_file.h"
#include "worker_runtime/mesh/mesh.h"
#include "worker_runtime/tokenizer/json/json_node.h"
#include "worker_runtime/weights/hf_config.h"
#include "worker_runtime/weights/mapped_weights.h"
#include "worker_runtime/weights/model_tensors.h"
#include "worker_runtime/weights/safetensors_files.h"
#include "worker_runtime/weights/tensor_elements.h"

namespace convene::worker {
namespace {

// The files with tensors, by their names. One alone needs no index.
absl::StatusOr<std::set<std::string>> FilesOf(const std::string& path) {
  absl::StatusOr<std::string> text = ReadFile(absl::StrCat(path, "/", kHfIndexName));
  if (absl::IsNotFound(text.status())) return std::set<std::string>{kHfWeightsName};
  if (!text.ok()) return text.status();
  const auto annotate = [&](const absl::Status& status) {
    return Annotate(status, absl::StrCat(path, "/", kHfIndexName));
  };
  const absl::StatusOr<JsonDocument> document = JsonDocument::Parse(*text);
  if (!document.ok()) return annotate(document.status());
  const absl::StatusOr<JsonNode> map = document->root().Get("weight_map");
  if (!map.ok()) return annotate(map.status());
  std::set<std::string> names;
  if (!map->value().IsObject()) return annotate(map->Error("should be an object"));
  for (const auto& member : map->value().GetObject()) {
    const absl::StatusOr<std::string> name =
        JsonNode(&member.value, "a value of weight_map").String();
    if (!name.ok()) return annotate(name.status());
    if (name->empty() || absl::StrContains(*name, "/")) {
      return annotate(map->Error(absl::StrCat(
          "names the file \"", *name, "\", and an index names files of its own folder alone")));
    }
    names.insert(*name);
  }
  // save_pretrained leaves the index of the shards that it has removed or that another program
  // wrote.
  const bool is_alone = IsFile(absl::StrCat(path, "/", kHfWeightsName));
  if (is_alone && !names.contains(kHfWeightsName)) return std::set<std::string>{kHfWeightsName};
  return names;
}

// The beginning of the model's names, which files of the base model leave out: "model.".
std::string BasePrefix(const Family& family) {
  const absl::string_view name = family.names.embedding;
  return std::string(name.substr(0, name.find('.') + 1));
}

// gpt-oss as OpenAI gives it away: a matrix of the experts in 4 bits, and not turned round
// (transformers' integrations/mxfp4.py turns it when it unpacks).
absl::StatusOr<StoredMatrix> FitPacked(const TensorPlace& blocks, const TensorPlace& scales,
                                       const FilePlace& wanted) {
  const int64_t columns = wanted.shape[1];
  const int64_t rows = wanted.shape[2];
  CONVENE_RETURN_IF_ERROR(CheckShape(blocks, {wanted.shape[0], rows, columns / 32, 16}));
  CONVENE_RETURN_IF_ERROR(CheckShape(scales, {wanted.shape[0], rows, columns / 32}));
  if (columns % 32 != 0 || blocks.tensor.type != "U8" || scales.tensor.type != "U8") {
    return absl::UnimplementedError(absl::StrCat(blocks.file->path(), ": tensor \"",
                                                 blocks.tensor.name,
                                                 "\" is not in blocks of 32 elements, as U8"));
  }
  const int64_t expert = wanted.first / (columns * rows);
  const int64_t first_row = wanted.first % (columns * rows);
  return StoredMatrix{.data = blocks.data,
                      .type = StoredType::kMxfp4,
                      .first = (expert * rows + first_row) * columns,
                      .row_step = wanted.row_step * columns,
                      .column_step = 1,
                      .scales = scales.data};
}

// Tensors of a folder that the model has no use for: masks and tables that can be computed, and the
// layers with which DeepSeek predicts a second token.
bool IsPassedOver(const ModelConfig& config, absl::string_view name) {
  if (absl::EndsWith(name, ".attn.bias") || absl::EndsWith(name, ".attn.masked_bias") ||
      absl::EndsWith(name, ".rotary_emb.inv_freq")) {
    return true;
  }
  int layer = 0;
  return config.family->router_bias &&
         absl::ConsumePrefix(&name, absl::StrCat(config.family->names.layers, ".")) &&
         absl::SimpleAtoi(name.substr(0, name.find('.')), &layer) && layer >= config.layers;
}

// transformers 5 does not tie a head that differs from its table, transformers 4 does.
absl::Status CheckTiedHead(const TensorPlace& head, const TensorPlace& table) {
  const SafeTensor& a = head.tensor;
  const SafeTensor& b = table.tensor;
  if (a.type == b.type && a.shape == b.shape &&
      std::memcmp(head.data, table.data, a.end - a.begin) == 0) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      head.file->path(), ": tensor \"", a.name, "\" differs from \"", b.name,
      "\", and config.json ties the two (tie_word_embeddings): say false there, or take it out"));
}

absl::StatusOr<HeldTensors> FitAll(const std::string& path, const ModelConfig& config,
                                   TensorPlaces places) {
  const Family& family = *config.family;
  const std::string base = BasePrefix(family);
  HeldTensors held;
  std::set<std::string> used;
  const auto find = [&](const std::string& name) {
    const auto place = places.find(name);
    return place != places.end() ? place : places.find(absl::StripPrefix(name, base));
  };
  for (const ModelTensor& tensor : ModelTensors(config)) {
    const FilePlace& file = tensor.file;
    const auto place = find(file.name);
    const auto blocks = find(absl::StrCat(file.name, "_blocks"));
    const auto scales = find(absl::StrCat(file.name, "_scales"));
    const bool is_packed = place == places.end() && file.shape.size() == 3 &&
                           blocks != places.end() && scales != places.end();
    if (place == places.end() && !is_packed) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, " has no tensor \"", file.name,
                       "\", which config.json makes a part of it: the "
                       "two are not of one model; fetch it again"));
    }
    CONVENE_ASSIGN_OR_RETURN(
        const StoredMatrix matrix,
        is_packed ? FitPacked(blocks->second, scales->second, file) : Fit(place->second, file));
    held.insert({tensor.name, {tensor.shape, matrix}});
    if (is_packed) {
      used.insert({blocks->first, scales->first});
    } else {
      used.insert(place->first);
    }
  }
  const std::string head = absl::StrCat(family.names.head, ".weight");
  for (const auto& [name, place] : places) {
    if (used.contains(name) || IsPassedOver(config, name)) continue;
    if (config.tied_embeddings && name == head) {
      const std::string table = absl::StrCat(family.names.embedding, ".weight");
      CONVENE_RETURN_IF_ERROR(CheckTiedHead(place, find(table)->second));
      continue;
    }
    return absl::InvalidArgumentError(absl::StrCat(place.file->path(), ": tensor \"", name,
                                                   "\" belongs to no model of family ", family.name,
                                                   " with this config.json: the two are not of one "
                                                   "model; fetch the folder again"));
  }
  return held;
}

std::string ConfigPath(const std::string& folder) {
  return absl::StrCat(folder, "/", kHfConfigName);
}

// Of the text of the file at `config_path`.
absl::StatusOr<ModelConfig> ShapeOf(const std::string& text, const std::string& config_path) {
  const absl::StatusOr<ModelConfig> config = ReadHfConfig(text);
  const absl::Status valid = config.ok() ? ValidateModel(*config, Layout()) : config.status();
  if (!valid.ok()) return Annotate(valid, config_path);
  return config;
}

}  // namespace

bool HasTokenizer(const std::vector<std::string>& names) {
  return std::any_of(names.begin(), names.end(), [](const std::string& name) {
    return name == "tokenizer.json" || name == "tekken.json" || name == "tokenizer.model" ||
           absl::EndsWith(name, ".tiktoken");
  });
}

absl::StatusOr<ModelConfig> ReadHfShape(const std::string& path) {
  const std::string config_path = ConfigPath(path);
  CONVENE_ASSIGN_OR_RETURN(const std::string text, ReadFile(config_path));
  return ShapeOf(text, config_path);
}

absl::StatusOr<Weights> OpenHfFolder(const std::string& path) {
  const std::string config_path = ConfigPath(path);
  CONVENE_ASSIGN_OR_RETURN(const std::string text, ReadFile(config_path));
  CONVENE_ASSIGN_OR_RETURN(const ModelConfig config, ShapeOf(text, config_path));
  CONVENE_ASSIGN_OR_RETURN(const int longest_text, ReadLongestText(text));
  CONVENE_ASSIGN_OR_RETURN(const std::vector<std::string> present, ListDirectory(path));
  CONVENE_ASSIGN_OR_RETURN(const std::set<std::string> names, FilesOf(path));
  std::vector<MappedFile> files;
  for (const std::string& name : names) {
    if (!std::binary_search(present.begin(), present.end(), name)) {
      return absl::InvalidArgumentError(absl::StrCat(
          path, " has no file ", name,
          names.size() > 1 ? ", which its index names: fetch it again"
                           : "; weights are read from safetensors (save_pretrained writes these)"));
    }
    CONVENE_ASSIGN_OR_RETURN(MappedFile file, MappedFile::Open(absl::StrCat(path, "/", name)));
    files.push_back(std::move(file));
  }
  TensorPlaces places;
  for (const MappedFile& file : files) CONVENE_RETURN_IF_ERROR(AddTensors(file, &places));
  CONVENE_ASSIGN_OR_RETURN(auto tensors, FitAll(path, config, std::move(places)));
  return Weights{.config = config,
                 .source = MapWeights(path, config, std::move(files), std::move(tensors)),
                 .tokenizer = HasTokenizer(present) ? path : "",
                 .longest_text = longest_text};
}

}  // namespace convene::worker

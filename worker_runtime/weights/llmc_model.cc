#include "worker_runtime/weights/llmc_model.h"

#include <array>
#include <cstdint>
#include <cstring>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tools/base/files.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/data/store/mapped_file.h"
#include "worker_runtime/mesh/mesh.h"
#include "worker_runtime/weights/mapped_weights.h"
#include "worker_runtime/weights/model_tensors.h"

namespace convene::worker {

std::vector<LlmcPlace> LlmcPlaces(const LlmcShape& shape, int64_t* elements) {
  const TensorNames& names = shape.config.family->names;
  std::map<std::string, ModelTensor> tensors;
  for (ModelTensor& tensor : ModelTensors(shape.config)) {
    tensors.insert({tensor.name, std::move(tensor)});
  }
  std::vector<LlmcPlace> places;
  *elements = 0;
  const auto add = [&](const std::string& name, int64_t more_rows = 0) {
    const ModelTensor& tensor = tensors.at(name);
    places.push_back({tensor, *elements});
    *elements += (tensor.shape[0] + more_rows) * tensor.shape[1];
  };
  add(absl::StrCat(names.embedding, ".weight"), shape.table_rows - shape.config.vocabulary_size);
  add(absl::StrCat(names.positions, ".weight"));
  for (const char* const part : {names.attention_norm, names.query, names.attention_out,
                                 names.mlp_norm, names.up, names.down}) {
    for (const char* const kind : {"weight", "bias"}) {
      for (int layer = 0; layer < shape.config.layers; ++layer) {
        add(absl::StrCat(names.layers, ".", layer, ".", part, ".", kind));
      }
    }
  }
  for (const char* const kind : {"weight", "bias"}) {
    add(absl::StrCat(names.final_norm, ".", kind));
  }
  return places;
}

absl::StatusOr<LlmcShape> ReadLlmcHeader(const LlmcHeader& header) {
  const auto [positions, vocabulary, layers, heads, hidden, rows] =
      std::array{header[2], header[3], header[4], header[5], header[6], header[7]};
  ModelConfig config = NamedModel("gpt2-124m").value();
  if (positions <= 0 || layers <= 0 || heads <= 0 || hidden <= 0 || hidden % heads != 0 ||
      hidden > (1 << 20) || vocabulary <= 0 || rows < vocabulary) {
    return absl::InvalidArgumentError("its header names a shape that makes no sense");
  }
  config.positions = positions;
  config.vocabulary_size = vocabulary;
  config.layers = layers;
  config.heads = config.kv_heads = heads;
  config.hidden_size = hidden;
  config.head_size = hidden / heads;
  config.ffn_size = 4 * hidden;
  CONVENE_RETURN_IF_ERROR(ValidateModel(config, Layout()));
  return LlmcShape{config, rows};
}

namespace {

absl::StatusOr<HeldTensors> Hold(const MappedFile& file, const LlmcShape& shape, StoredType type) {
  int64_t elements = 0;
  const std::vector<LlmcPlace> places = LlmcPlaces(shape, &elements);
  const int64_t element_bytes = type == StoredType::kF32 ? 4 : 2;
  const auto wanted = static_cast<int64_t>(sizeof(LlmcHeader)) + elements * element_bytes;
  if (file.size() != wanted) {
    return absl::InvalidArgumentError(absl::StrCat("it has ", file.size(),
                                                   " bytes, and its header makes it ", wanted,
                                                   ": fetch or write it again"));
  }
  HeldTensors held;
  for (const LlmcPlace& place : places) {
    const StoredMatrix matrix = {.data = file.data() + sizeof(LlmcHeader),
                                 .type = type,
                                 .first = place.begin,
                                 .row_step = place.tensor.shape[1]};
    held.insert({place.tensor.name, {place.tensor.shape, matrix}});
  }
  return held;
}

}  // namespace

bool IsLlmcModel(const std::string& path) {
  const auto file = MappedFile::Open(path);
  return file.ok() && file->size() >= static_cast<int64_t>(sizeof(LlmcHeader)) &&
         std::memcmp(file->data(), &kLlmcModelMagic, sizeof(kLlmcModelMagic)) == 0;
}

absl::StatusOr<Weights> OpenLlmcModel(const std::string& path) {
  CONVENE_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
  LlmcHeader header = {};
  if (file.size() < static_cast<int64_t>(sizeof(header))) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": it is shorter than its header"));
  }
  std::memcpy(header.data(), file.data(), sizeof(header));
  if (header[0] != kLlmcModelMagic || (header[1] != kLlmcFloat32 && header[1] != kLlmcBFloat16)) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": it is no model of llm.c in version 3 (fp32) or 5 (bf16), but of ", header[1]));
  }
  const StoredType type = header[1] == kLlmcFloat32 ? StoredType::kF32 : StoredType::kBF16;
  const absl::StatusOr<LlmcShape> shape = ReadLlmcHeader(header);
  if (!shape.ok()) return Annotate(shape.status(), path);
  absl::StatusOr<HeldTensors> tensors = Hold(file, *shape, type);
  if (!tensors.ok()) return Annotate(tensors.status(), path);
  return Weights{.config = shape->config,
                 .source = MapWeights(path, shape->config, {file}, *std::move(tensors))};
}

}  // namespace convene::worker

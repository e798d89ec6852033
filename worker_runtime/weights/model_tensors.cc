#include "worker_runtime/weights/model_tensors.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "worker_runtime/model/parameters.h"

namespace convene::worker {
namespace {

// "layers.0.mlp.experts.12.up_proj.weight" in its parts.
struct ExpertName {
  absl::string_view before;  // "layers.0.mlp.experts."
  int64_t number = 0;
  absl::string_view matrix;  // "up_proj"
  bool is_bias = false;
};

bool ParseExpertName(const Family& family, absl::string_view name, ExpertName* expert) {
  const std::string word = absl::StrCat(".", family.names.experts, ".");
  const size_t at = name.find(word);
  if (at == name.npos) return false;
  expert->before = name.substr(0, at + word.size());
  name.remove_prefix(at + word.size());
  const size_t point = name.find('.');
  if (!absl::SimpleAtoi(name.substr(0, point), &expert->number)) return false;
  name.remove_prefix(point + 1);
  expert->is_bias = absl::ConsumeSuffix(&name, ".bias");
  expert->matrix = absl::StripSuffix(name, ".weight");
  return true;
}

// As gpt-oss has them: a layer's experts side by side, turned round, gate and up in turn.
FilePlace AmongExperts(const ModelConfig& config, const ExpertName& expert,
                       const std::array<int64_t, 2>& shape) {
  const TensorNames& names = config.family->names;
  const bool is_down = expert.matrix == names.expert_down;
  const int64_t rows = expert.is_bias ? shape[1] : shape[0];  // of the model's matrix
  const int64_t columns = expert.is_bias ? 1 : shape[1];
  const int64_t together = is_down ? 1 : 2;
  FilePlace place = {
      .name = absl::StrCat(expert.before, is_down ? names.expert_down : config.family->keys.gate_up,
                           expert.is_bias ? "_bias" : ""),
      .shape = {config.experts.count, columns, together * rows},
      .first =
          expert.number * columns * together * rows + (expert.matrix == names.expert_up ? 1 : 0),
      .row_step = together,
      .column_step = together * rows};
  if (!expert.is_bias) return place;
  place.shape.erase(place.shape.begin() + 1);
  std::swap(place.row_step, place.column_step);  // a bias is one row
  return place;
}

FilePlace PlaceOf(const ModelConfig& config, const ParameterSlice& slice) {
  const Family& family = *config.family;
  const auto [rows, columns] = slice.global_shape;
  ExpertName expert;
  if (family.keys.gate_up != nullptr && ParseExpertName(family, slice.name, &expert)) {
    return AmongExperts(config, expert, slice.global_shape);
  }
  // A bias has one row, and no files have it turned.
  if (family.keys.turned_matrices && slice.is_matrix()) {
    return {slice.name, {columns, rows}, 0, 1, rows};
  }
  FilePlace place = {slice.name, {rows, columns}, 0, columns, 1};
  // A matrix of one row is one.
  if (rows == 1 && !slice.decayed) place.shape.erase(place.shape.begin());
  return place;
}

// Each of them once; of adapters or of the model.
std::vector<ModelTensor> TensorsOf(const ModelConfig& config, bool of_adapters) {
  std::vector<ModelTensor> tensors;
  absl::flat_hash_set<std::string> names;
  const ModelChunk whole = {.layers = config.layers, .has_embedding = true, .has_head = true};
  for (const UnitSpec& unit : UnitsOf(config, whole, /*tp_size=*/1, /*tp_rank=*/0)) {
    for (const UnitTensor& tensor : unit.tensors) {
      if (of_adapters && tensor.is_frozen) continue;
      for (const ParameterSlice& slice : tensor.slices) {
        if (!names.insert(slice.name).second) continue;
        tensors.push_back({slice.name, slice.global_shape, PlaceOf(config, slice), slice.balances});
        const auto [rows, columns] = slice.global_shape;
        if (of_adapters) tensors.back().file.shape = {rows, columns};
      }
    }
  }
  return tensors;
}

}  // namespace

std::vector<ModelTensor> ModelTensors(const ModelConfig& config) {
  ModelConfig model = config;
  model.adapter = {};
  return TensorsOf(model, /*of_adapters=*/false);
}

std::vector<ModelTensor> AdapterTensors(const ModelConfig& config) {
  return config.adapter.is_on() ? TensorsOf(config, /*of_adapters=*/true)
                                : std::vector<ModelTensor>();
}

TensorPiece RowsOf(const ModelTensor& tensor, int64_t begin, int64_t end) {
  const int axis = tensor.is_turned() ? 1 : 0;
  TensorPiece piece = {.name = tensor.name,
                       .global_shape = {tensor.shape.begin(), tensor.shape.end()},
                       .local_box = {{0, 0}, {tensor.shape.begin(), tensor.shape.end()}}};
  piece.local_box.offset[axis] = begin;
  piece.local_box.extent[axis] = end - begin;
  piece.flat_count = piece.local_box.elements();
  return piece;
}

std::vector<TensorPiece> RunsOf(const ModelTensor& tensor, int64_t elements) {
  const int64_t rows = tensor.file_rows();
  const int64_t step = std::max<int64_t>(1, elements / tensor.file_row_step());
  std::vector<TensorPiece> runs;
  for (int64_t row = 0; row < rows; row += step) {
    runs.push_back(RowsOf(tensor, row, std::min(rows, row + step)));
  }
  return runs;
}

}  // namespace convene::worker

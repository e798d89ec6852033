#include "worker_runtime/weights/model_tensors.h"

#include <algorithm>

#include "absl/container/flat_hash_set.h"
#include "worker_runtime/model/parameters.h"

namespace convene::worker {

std::vector<ModelTensor> ModelTensors(const ModelConfig& config) {
  std::vector<ModelTensor> tensors;
  absl::flat_hash_set<std::string> names;
  const ModelChunk whole = {.layers = config.layers, .has_embedding = true, .has_head = true};
  for (const UnitSpec& unit : UnitsOf(config, whole, /*tp_size=*/1, /*tp_rank=*/0)) {
    for (const UnitTensor& tensor : unit.tensors) {
      for (const ParameterSlice& slice : tensor.slices) {
        if (!names.insert(slice.name).second) continue;
        // A bias has one row, and no files have it turned.
        const bool is_turned = config.family->keys.turned_matrices && slice.is_matrix();
        tensors.push_back({slice.name, slice.global_shape, is_turned});
      }
    }
  }
  return tensors;
}

TensorPiece RowsOf(const ModelTensor& tensor, int64_t begin, int64_t end) {
  const int axis = tensor.is_turned ? 1 : 0;
  TensorPiece piece = {.name = tensor.name,
                       .global_shape = {tensor.shape.begin(), tensor.shape.end()},
                       .local_box = {{0, 0}, {tensor.shape.begin(), tensor.shape.end()}}};
  piece.local_box.offset[axis] = begin;
  piece.local_box.extent[axis] = end - begin;
  piece.flat_count = piece.local_box.elements();
  return piece;
}

std::vector<TensorPiece> RunsOf(const ModelTensor& tensor, int64_t elements) {
  const int64_t rows = tensor.shape[tensor.is_turned ? 1 : 0];
  const int64_t width = tensor.shape[tensor.is_turned ? 0 : 1];
  const int64_t step = std::max<int64_t>(1, elements / width);
  std::vector<TensorPiece> runs;
  for (int64_t row = 0; row < rows; row += step) {
    runs.push_back(RowsOf(tensor, row, std::min(rows, row + step)));
  }
  return runs;
}

}  // namespace convene::worker

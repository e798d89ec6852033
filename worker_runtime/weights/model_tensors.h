// PURE. The tensors of a whole model, each once.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "worker_runtime/checkpoint/box.h"
#include "worker_runtime/model/config.h"

namespace convene::worker {

struct ModelTensor {
  std::string name;              // as the family's table and our checkpoints have it
  std::array<int64_t, 2> shape;  // ParameterSlice::global_shape
  bool is_turned = false;        // the family's files have it as (columns, rows)
};

// In the order of the forward pass. REQUIRES: ValidateModel is OK.
std::vector<ModelTensor> ModelTensors(const ModelConfig& config);

// Rows [begin, end) of the tensor as the family's files have it: of a turned one columns.
TensorPiece RowsOf(const ModelTensor& tensor, int64_t begin, int64_t end);

// The same as all of the tensor, in runs of rows of at most `elements`, but at least one row.
std::vector<TensorPiece> RunsOf(const ModelTensor& tensor, int64_t elements);

}  // namespace convene::worker

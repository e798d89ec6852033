// PURE. The tensors of a whole model, each once.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "worker_runtime/checkpoint/box.h"
#include "worker_runtime/model/config.h"

namespace convene::worker {

// Where a tensor's element (row, column) lies among those of a tensor of the family's files: at
// first + row * row_step + column * column_step.
struct FilePlace {
  std::string name;
  std::vector<int64_t> shape;
  int64_t first = 0;
  int64_t row_step = 0;
  int64_t column_step = 1;
};

struct ModelTensor {
  std::string name;              // as the family's table and our checkpoints have it
  std::array<int64_t, 2> shape;  // ParameterSlice::global_shape
  FilePlace file;
  bool balances = false;  // ParameterSlice::balances

  // The files have its columns one after another.
  bool is_turned() const { return file.row_step < file.column_step; }
  // Of the files' rows: these are columns of a turned one.
  int64_t file_rows() const { return shape[is_turned() ? 1 : 0]; }
  int64_t file_row_step() const { return std::max(file.row_step, file.column_step); }
};

// In the order of the forward pass, without adapters. REQUIRES: ValidateModel is OK.
std::vector<ModelTensor> ModelTensors(const ModelConfig& config);

// The tensors of config.adapter alone, as PEFT's files have them behind "base_model.model.".
std::vector<ModelTensor> AdapterTensors(const ModelConfig& config);

// Rows [begin, end) of the tensor as the family's files have it: of a turned one columns.
TensorPiece RowsOf(const ModelTensor& tensor, int64_t begin, int64_t end);

// The same as all of the tensor, in runs of rows of at most `elements`, but at least one row.
std::vector<TensorPiece> RunsOf(const ModelTensor& tensor, int64_t elements);

}  // namespace convene::worker

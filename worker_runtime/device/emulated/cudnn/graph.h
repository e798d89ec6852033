// A graph of operations as cuDNN's frontend hands it to the backend, and its computation by plain
// loops.
#pragma once

#include <cudnn.h>

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace convene::emulated {

// Four dimensions: (sequence, head, row, column). `id` names it in the list of pointers.
struct CudnnTensor {
  int64_t id = 0;
  cudnnDataType_t type = CUDNN_DATA_FLOAT;
  std::array<int64_t, 4> dimensions = {};
  std::array<int64_t, 4> strides = {};
  int64_t alignment = 0;
  bool is_virtual = false;       // no memory: it goes from one operation to the next
  bool is_by_value = false;      // one number in the host's memory
  std::optional<int64_t> begin;  // of ragged tensors: the tensor that says where sequences begin

  // The dimension along which its sequences are longer or shorter: the row's, or the column's of a
  // tensor that is read turned.
  int sequence_dimension() const { return strides[3] > strides[2] ? 3 : 2; }
  int64_t sequence_stride() const { return strides[sequence_dimension()]; }
};

struct CudnnOperation {
  cudnnBackendDescriptorType_t kind = {};  // CUDNN_BACKEND_OPERATION_..._DESCRIPTOR
  cudnnPointwiseMode_t pointwise = {};
  int64_t axis = 0;  // of CUDNN_POINTWISE_GEN_INDEX
  cudnnReduceTensorOp_t reduction = {};
  // Tensors: the inputs (of a product A and B, of a choice the flag last), and the result.
  std::vector<int64_t> inputs;
  int64_t output = 0;
  // Of a product: the tensor with each sequence's count of rows, columns and summands, if any.
  std::optional<int64_t> rows, columns, depth;
};

struct CudnnGraph {
  std::map<int64_t, CudnnTensor> tensors;
  std::vector<CudnnOperation> operations;  // each after those whose results it reads
};

// Of each tensor that is not virtual. By-value tensors: copies, as the host may change them later.
struct CudnnPointers {
  std::map<int64_t, void*> memory;
  std::map<int64_t, float> values;
};

// The number of this type at `from`, which is aligned to nothing. Throws what ComputeCudnnGraph
// would return.
float ReadCudnnNumber(cudnnDataType_t type, const void* from);

// Computes in float, and rounds what is stored as its tensor says. Nothing is read or written
// outside a sequence: there a tensor is NaN. Returns the violation, in words; empty without one.
// Called by work in a stream.
std::string ComputeCudnnGraph(const CudnnGraph& graph, const CudnnPointers& pointers);

}  // namespace convene::emulated

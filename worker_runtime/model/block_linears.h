// The linear layers of a block, as its parts take them: weights with the places of 8-bit floats and
// with adapters, where there are such.
#pragma once

#include "worker_runtime/model/block_adapters.h"
#include "worker_runtime/model/block_float8.h"
#include "worker_runtime/model/parameters.h"
#include "worker_runtime/model/unit.h"
#include "worker_runtime/parallel/linear.h"

namespace convene::worker {

// One block's. A cheap value, but for lists.
template <typename T>
struct BlockLinears {
  BlockFloat8 float8;
  BlockAdapters<T> adapters;

  // The layer of one of kLinearTensors; `bias`: a role, or -1.
  Linear<T> Of(const BlockShape& shape, const Pass<T>& pass, BlockTensor tensor,
               int bias = -1) const;
  // The same for a backward pass: adapters have places for their gradients.
  Linear<T> Backward(const BlockShape& shape, const Pass<T>& pass, BlockTensor tensor) const;
  // The same for a weight half, which has no weights.
  Linear<T> Later(const BlockShape& shape, const Pass<T>& pass, BlockTensor tensor) const;
};

}  // namespace convene::worker

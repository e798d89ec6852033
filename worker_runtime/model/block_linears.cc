#include "worker_runtime/model/block_linears.h"

#include "worker_runtime/model/block_part.h"

namespace convene::worker {

template <typename T>
Linear<T> BlockLinears<T>::Of(const BlockShape& shape, const Pass<T>& pass, BlockTensor tensor,
                              int bias) const {
  return {.shape = LinearShapeOf(shape, tensor),
          .weight = pass.Weight(tensor),
          .bias = pass.Weight(bias),
          .float8 = float8.Layer(pass, tensor),
          .low_rank = adapters.Of(pass, tensor)};
}

template <typename T>
Linear<T> BlockLinears<T>::Backward(const BlockShape& shape, const Pass<T>& pass,
                                    BlockTensor tensor) const {
  Linear<T> linear = Of(shape, pass, tensor);
  linear.low_rank = adapters.WithGradients(pass, tensor);
  return linear;
}

template <typename T>
Linear<T> BlockLinears<T>::Later(const BlockShape& shape, const Pass<T>& pass,
                                 BlockTensor tensor) const {
  return {.shape = LinearShapeOf(shape, tensor), .float8 = float8.Layer(pass, tensor)};
}

template struct BlockLinears<float>;
template struct BlockLinears<BFloat16>;

}  // namespace convene::worker

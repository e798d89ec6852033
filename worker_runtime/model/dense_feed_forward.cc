#include "worker_runtime/model/dense_feed_forward.h"

#include <algorithm>
#include <utility>

#include "tools/base/status_macros.h"
#include "worker_runtime/ops/activation.h"
#include "worker_runtime/ops/bias.h"
#include "worker_runtime/ops/instantiate.h"

namespace convene::worker {

template <typename T>
void DeclareDense(const BlockShape& s, const Recompute& recompute, const SetDeclarer& declare,
                  DenseMemory<T>& memory) {
  const int64_t rows = s.rows();
  declare(memory.gate_up, recompute.mlp, false, "gate-up", rows * s.gate_up_width());
  declare(memory.product, recompute.swiglu, true, "product", rows * s.ffn);
}

template <typename T>
DenseFeedForward<T>::DenseFeedForward(const BlockShape& shape, const Recompute& recompute,
                                      std::vector<DenseMemory<T>> memory,
                                      std::vector<DenseDeferred<T>> deferred,
                                      const BlockLinears<T>& linears, int chunks)
    : s_(shape),
      recompute_(recompute),
      pipes_gradient_(chunks > 1 && shape.residual_rows < shape.rows()),
      memory_(std::move(memory)),
      deferred_(std::move(deferred)),
      linears_(linears) {}

template <typename T>
ScratchSizes DenseFeedForward<T>::scratch(DeviceKind device, int64_t /*spare*/) const {
  const bool wants_place = pipes_gradient_ || !deferred_.empty();
  const int widest = s_.family->other_biases ? std::max(s_.gate_up_width(), s_.hidden) : 0;
  return {.narrow = wants_place ? int64_t{s_.rows()} * s_.ffn : 0,
          .workspace_bytes = BiasWorkspaceBytes(s_.rows(), widest, device)};
}

template <typename T>
DenseMemory<T> DenseFeedForward<T>::MemoryOf(const Pass<T>& pass) const {
  DenseMemory<T> a = memory_[pass.slot];
  if (pass.deferred >= 0) TakeDeferred(deferred_[pass.deferred].factors.product, a.product);
  return a;
}

template <typename T>
absl::Status DenseFeedForward<T>::Again(const Pass<T>& pass, const T* x) {
  return ColumnParallelForward(linears_.Of(s_, pass, kGateUp, kGateUpBias), x,
                               At(memory_[pass.slot].gate_up), *pass.around.rows, pass.stream);
}

template <typename T>
absl::Status DenseFeedForward<T>::Forward(const Pass<T>& pass, const T* x, T* y) {
  const DenseMemory<T> a = MemoryOf(pass);
  CONVENE_RETURN_IF_ERROR(Again(pass, x));
  ActivationForward(s_.family->activation, s_.rows(), s_.ffn, At(a.gate_up), At(a.product),
                    pass.stream);
  return RowParallelForward(linears_.Of(s_, pass, kDown, kDownBias), At(a.product), y,
                            *pass.around.rows, pass.stream);
}

template <typename T>
absl::Status DenseFeedForward<T>::Backward(const Pass<T>& pass, const T* x, const T* dy, T* dx,
                                           absl::Span<T> /*spare*/) {
  const DenseMemory<T> a = MemoryOf(pass);
  ChunkedRows& rows = *pass.around.rows;
  if (recompute_.swiglu) {
    ActivationForward(s_.family->activation, s_.rows(), s_.ffn, At(a.gate_up), At(a.product),
                      pass.stream);
  }
  // Gradients take the places of what they are the gradients of, unless a weight half or a weight
  // product behind them wants both.
  T* const product = pass.deferred >= 0 || pipes_gradient_ ? pass.around.narrow : At(a.product);
  T* gate_up = At(a.gate_up);
  CONVENE_RETURN_IF_ERROR(RowParallelBackward(linears_.Backward(s_, pass, kDown), At(a.product), dy,
                                              product, ProductGradient(pass, kDown), rows,
                                              pass.stream));
  const Workspace& workspace = pass.around.workspace;
  RowBiasBackward(LinearShapeOf(s_, kDown), dy, pass.Gradient(kDownBias), workspace, rows,
                  pass.stream);
  if (pass.deferred >= 0) {
    const DenseDeferred<T>& later = deferred_[pass.deferred];
    KeepGradient(pass, dy, later.down);
    gate_up = At(later.gate_up);
  }
  ActivationBackward(s_.family->activation, s_.rows(), s_.ffn, At(a.gate_up), product, gate_up,
                     pass.stream);
  ColumnBiasBackward(LinearShapeOf(s_, kGateUp), gate_up, ProductGradient(pass, kGateUpBias),
                     workspace, pass.stream);
  return ColumnParallelBackward(linears_.Backward(s_, pass, kGateUp), x, gate_up, dx,
                                ProductGradient(pass, kGateUp), rows, pass.stream);
}

template <typename T>
void DenseFeedForward<T>::BackwardWeight(const Pass<T>& pass, const T* x) {
  const DenseDeferred<T>& later = deferred_[pass.deferred];
  LaterWeightGradient(linears_.Later(s_, pass, kDown), At(MemoryOf(pass).product), At(later.down),
                      pass.LaterGradient(kDown), pass.stream);
  ColumnBiasBackward(LinearShapeOf(s_, kGateUp), At(later.gate_up), pass.LaterGradient(kGateUpBias),
                     pass.around.workspace, pass.stream);
  LaterWeightGradient(linears_.Later(s_, pass, kGateUp), x, At(later.gate_up),
                      pass.LaterGradient(kGateUp), pass.stream);
}

CONVENE_INSTANTIATE(DeclareDense);
template class DenseFeedForward<float>;
template class DenseFeedForward<BFloat16>;

}  // namespace convene::worker

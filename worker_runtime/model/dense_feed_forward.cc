#include "worker_runtime/model/dense_feed_forward.h"

#include <algorithm>
#include <utility>

#include "tools/base/status_macros.h"
#include "worker_runtime/ops/activation.h"
#include "worker_runtime/ops/bias.h"
#include "worker_runtime/ops/expert_rows.h"
#include "worker_runtime/ops/instantiate.h"
#include "worker_runtime/ops/matmul.h"

namespace convene::worker {

template <typename T>
void DeclareDense(const BlockShape& s, const Recompute& recompute, const SetDeclarer& declare,
                  DenseMemory<T>& memory) {
  const int64_t rows = s.rows();
  declare(memory.gate_up, recompute.mlp, false, "gate-up", rows * s.gate_up_width());
  declare(memory.product, recompute.swiglu, true, "product", rows * s.ffn);
  if (!s.has_shared_gate()) return;
  declare(memory.gate_logits, false, false, "shared gate logits", rows);
  declare(memory.gate_gradient, true, false, "shared gate gradient", rows);
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
  const bool wants_place = pipes_gradient_ || !deferred_.empty() || s_.has_shared_gate();
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
void DenseFeedForward<T>::Activate(const DenseMemory<T>& a, Stream& stream) const {
  ActivationForward(s_.family->activation, s_.rows(), s_.ffn, At(a.gate_up), At(a.product), stream);
  if (!s_.has_shared_gate()) return;
  GateRows(s_.rows(), s_.ffn, At(a.gate_logits), At(a.product), stream);
}

template <typename T>
absl::Status DenseFeedForward<T>::Forward(const Pass<T>& pass, const T* x, T* y) {
  const DenseMemory<T> a = MemoryOf(pass);
  CONVENE_RETURN_IF_ERROR(Again(pass, x));
  if (s_.has_shared_gate()) {
    MatMul(Transpose::kNo, Transpose::kYes, s_.rows(), 1, s_.hidden, x, pass.Weight(kSharedGate), 0,
           At(a.gate_logits), pass.stream);
  }
  Activate(a, pass.stream);
  return RowParallelForward(linears_.Of(s_, pass, kDown, kDownBias), At(a.product), y,
                            *pass.around.rows, pass.stream);
}

template <typename T>
absl::Status DenseFeedForward<T>::Backward(const Pass<T>& pass, const T* x, const T* dy, T* dx,
                                           absl::Span<T> /*spare*/) {
  const DenseMemory<T> a = MemoryOf(pass);
  ChunkedRows& rows = *pass.around.rows;
  if (recompute_.swiglu) Activate(a, pass.stream);
  // Gradients take the places of what they are the gradients of, unless a weight half, a gate or a
  // weight product behind them wants both.
  T* const product = pass.deferred >= 0 || pipes_gradient_ || s_.has_shared_gate()
                         ? pass.around.narrow
                         : At(a.product);
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
  if (s_.has_shared_gate()) {
    GateRowsBackward(s_.rows(), s_.ffn, At(a.gate_logits), At(a.product), product,
                     At(a.gate_gradient), pass.stream);
  }
  ActivationBackward(s_.family->activation, s_.rows(), s_.ffn, At(a.gate_up), product, gate_up,
                     pass.stream);
  ColumnBiasBackward(LinearShapeOf(s_, kGateUp), gate_up, ProductGradient(pass, kGateUpBias),
                     workspace, pass.stream);
  CONVENE_RETURN_IF_ERROR(ColumnParallelBackward(linears_.Backward(s_, pass, kGateUp), x, gate_up,
                                                 dx, ProductGradient(pass, kGateUp), rows,
                                                 pass.stream));
  if (s_.has_shared_gate()) GateBackward(pass, a, x, dx);
  return absl::OkStatus();
}

template <typename T>
void DenseFeedForward<T>::GateBackward(const Pass<T>& pass, const DenseMemory<T>& a, const T* x,
                                       T* dx) const {
  const T* const dlogits = At(a.gate_gradient);
  LinearWeightGradient({s_.rows(), 1, s_.hidden}, x, dlogits, pass.Gradient(kSharedGate),
                       pass.stream);
  MatMul(Transpose::kNo, Transpose::kNo, s_.rows(), s_.hidden, 1, dlogits, pass.Weight(kSharedGate),
         1, dx, pass.stream);
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

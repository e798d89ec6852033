#include "worker_runtime/model/loss_head.h"

#include <algorithm>

#include "absl/types/span.h"
#include "tools/base/rounding.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/ops/cross_entropy.h"
#include "worker_runtime/ops/rms_norm.h"

namespace convene::worker {
namespace {

constexpr int kRowMultiple = 16;

}  // namespace

int LossChunkRows(int rows, int columns, size_t element_bytes, size_t logits_bytes) {
  const size_t fitting = std::max<size_t>(
      kRowMultiple, logits_bytes / (columns * element_bytes) / kRowMultiple * kRowMultiple);
  if (fitting >= static_cast<size_t>(rows)) return rows;
  const int most = static_cast<int>(fitting);
  const int64_t chunks = CeilDivide(rows, most);
  return static_cast<int>(std::min<int64_t>(rows, RoundUp(CeilDivide(rows, chunks), kRowMultiple)));
}

template <typename T>
LossHead<T>::LossHead(const LossHeadShape& shape, DeviceKind device, Collective& tp, Arena& arena)
    : shape_(shape),
      chunk_rows_(
          LossChunkRows(shape.rows, shape.vocabulary.size(), sizeof(T), shape.logits_bytes)),
      workspace_bytes_(std::max(CrossEntropyWorkspaceBytes(chunk_rows_, device),
                                RmsNormWorkspaceBytes(shape.rows, shape.hidden, device))),
      tp_(tp),
      arena_(arena),
      normalized_memory_(
          arena.Declare<T>("scratch/final norm", int64_t{shape.rows} * shape.hidden)),
      logits_memory_(
          arena.Declare<T>("scratch/logits", int64_t{chunk_rows_} * shape.vocabulary.size())),
      maxima_memory_(arena.Declare<float>("scratch/loss maxima", 2 * int64_t{chunk_rows_},
                                          ArenaPart::kCollective)),
      sums_memory_(arena.Declare<float>("scratch/loss sums", 2 * int64_t{chunk_rows_},
                                        ArenaPart::kCollective)),
      workspace_memory_(arena.Declare<char>("scratch/loss workspace", workspace_bytes_)) {}

template <typename T>
void LossHead<T>::Bind() {
  normalized_ = arena_.View(normalized_memory_).data();
  logits_ = arena_.View(logits_memory_).data();
  float* const maxima = arena_.View(maxima_memory_).data();
  buffers_ = {.slice_max = maxima,
              .row_max = maxima + chunk_rows_,
              .sums = arena_.View(sums_memory_).data(),
              .workspace = {arena_.View(workspace_memory_).data(), workspace_bytes_}};
}

template <typename T>
absl::Status LossHead<T>::Forward(const Weights& weights, const T* residual, const T* delta,
                                  const int32_t* targets, const float* gradient_scale,
                                  const Activations& activations, double* loss_sum,
                                  Stream& stream) {
  AddRmsNormForward(shape_.rows, shape_.hidden, residual, delta, weights.norm, shape_.norm_epsilon,
                    activations.sum, normalized_, activations.rms, stream);
  for (int first = 0; first < shape_.rows; first += chunk_rows_) {
    CONVENE_RETURN_IF_ERROR(ForwardChunk(weights, first, std::min(chunk_rows_, shape_.rows - first),
                                         targets + first, gradient_scale, activations, loss_sum,
                                         stream));
  }
  if (gradient_scale == nullptr) return absl::OkStatus();
  return tp_.AllReduce(
      absl::MakeSpan(activations.gradient, static_cast<size_t>(shape_.rows) * shape_.hidden),
      ReduceOp::kSum, stream);
}

template <typename T>
absl::Status LossHead<T>::ForwardChunk(const Weights& weights, int first_row, int rows,
                                       const int32_t* targets, const float* gradient_scale,
                                       const Activations& activations, double* loss_sum,
                                       Stream& stream) {
  const LinearShape linear = {rows, shape_.vocabulary.size(), shape_.hidden};
  const int64_t offset = int64_t{first_row} * shape_.hidden;
  LinearForward(linear, normalized_ + offset, weights.head, logits_, stream);
  CONVENE_RETURN_IF_ERROR(VocabularyParallelCrossEntropy(
      shape_.vocabulary, rows, targets, gradient_scale, buffers_, loss_sum, logits_, tp_, stream));
  if (gradient_scale == nullptr) return absl::OkStatus();
  LinearInputGradient(linear, weights.head, logits_, activations.gradient + offset, stream);
  WeightGradient head_gradient = weights.head_gradient;
  if (first_row > 0) head_gradient.adds = true;
  LinearWeightGradient(linear, normalized_ + offset, logits_, head_gradient, stream);
  return absl::OkStatus();
}

template <typename T>
void LossHead<T>::Backward(const Weights& weights, const Activations& activations, T* gradient,
                           Stream& stream) {
  RmsNormBackward(shape_.rows, shape_.hidden, activations.sum, weights.norm, activations.rms,
                  activations.gradient, /*add_to_dx=*/false, gradient, weights.norm_gradient.adds,
                  weights.norm_gradient.data, buffers_.workspace, stream);
}

template class LossHead<float>;
template class LossHead<BFloat16>;

}  // namespace convene::worker

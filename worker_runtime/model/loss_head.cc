#include "worker_runtime/model/loss_head.h"

#include <algorithm>

#include "tools/base/check.h"
#include "tools/base/rounding.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/model/parameters.h"
#include "worker_runtime/ops/cross_entropy.h"
#include "worker_runtime/ops/elementwise.h"
#include "worker_runtime/ops/preference_loss.h"
#include "worker_runtime/parallel/linear.h"

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
LossHead<T>::LossHead(const LossHeadShape& shape, int slots, DeviceKind device, Arena& arena)
    : shape_(shape),
      chunk_rows_(shape.cached_logits > 0
                      ? shape.cached_logits
                      : LossChunkRows(shape.preference_beta > 0 ? shape.rows / (2 * shape.samples)
                                                                : shape.rows,
                                      shape.vocabulary.size(), sizeof(T),
                                      shape.logits_bytes / (shape.logit_cap > 0 ? 2 : 1))),
      workspace_bytes_(
          std::max(CrossEntropyWorkspaceBytes(chunk_rows_, device),
                   NormWorkspaceBytes(shape.norm, shape.residual_rows, shape.hidden, device))),
      normalized_memory_(arena.Declare<T>(
          "scratch/final norm", int64_t{shape.rows} * shape.hidden,
          shape.residual_rows < shape.rows ? ArenaPart::kCollective : ArenaPart::kLocal)),
      logits_memory_(
          arena.Declare<T>("scratch/logits", int64_t{chunk_rows_} * shape.vocabulary.size())),
      last_memory_(
          arena.Declare<T>("scratch/last tokens", int64_t{shape.cached_logits} * shape.hidden)),
      capped_memory_(arena.Declare<T>("scratch/capped logits",
                                      shape.logit_cap > 0 && shape.cached_logits == 0
                                          ? int64_t{chunk_rows_} * shape.vocabulary.size()
                                          : 0)),
      maxima_memory_(arena.Declare<float>("scratch/loss maxima", 2 * int64_t{chunk_rows_},
                                          ArenaPart::kCollective)),
      sums_memory_(arena.Declare<float>("scratch/loss sums", 2 * int64_t{chunk_rows_},
                                        ArenaPart::kCollective)),
      workspace_memory_(arena.Declare<char>("scratch/loss workspace", workspace_bytes_)),
      pair_weights_(arena.Declare<float>("scratch/pair weights",
                                         shape.preference_beta > 0 ? 2 * shape.samples : 0)),
      unwanted_loss_(
          arena.Declare<double>("scratch/unwanted loss", shape.preference_beta > 0 ? 1 : 0)) {
  const int64_t hidden_count = int64_t{shape.rows} * shape.hidden;
  for (int slot = 0; slot < slots; ++slot) {
    slots_.push_back({.norm_statistics = arena.Declare<float>(
                          "activations/final norm rms",
                          int64_t{shape.residual_rows} * NormStatistics(shape.norm)),
                      .gradient = arena.Declare<T>("activations/final norm gradient", hidden_count,
                                                   ArenaPart::kCollective)});
  }
}

template <typename T>
CrossEntropyBuffers LossHead<T>::Buffers() const {
  float* const maxima = At(maxima_memory_);
  return {.slice_max = maxima,
          .row_max = maxima + chunk_rows_,
          .sums = At(sums_memory_),
          .workspace = workspace()};
}

template <typename T>
Norm<T> LossHead<T>::NormOf(const Memory& memory, const Pass<T>& pass) const {
  return {.kind = shape_.norm,
          .columns = shape_.hidden,
          .weight = pass.Weight(kFinalNorm),
          .bias = pass.Weight(kFinalNormBias),
          .epsilon = shape_.norm_epsilon,
          .statistics = At(memory.norm_statistics)};
}

template <typename T>
void LossHead<T>::DivideRows(T* x, Stream& stream) const {
  if (shape_.logit_divisor == 1) return;
  ScaleInPlace(int64_t{shape_.rows} * shape_.hidden, 1 / shape_.logit_divisor, x, stream);
}

template <typename T>
absl::Status LossHead<T>::Forward(const Pass<T>& pass, T* /*target*/, Flow<T>& flow) {
  const Memory& memory = slots_[pass.head];
  ChunkedRows& rows = *pass.around.rows;
  T* const normalized = At(normalized_memory_);
  CONVENE_RETURN_IF_ERROR(NormForward(NormOf(memory, pass), flow.residual, flow.delta, pass.input,
                                      normalized, rows, pass.stream));
  CONVENE_RETURN_IF_ERROR(rows.Finish(normalized, pass.stream));
  DivideRows(normalized, pass.stream);
  if (pass.around.cache != nullptr) {
    ForwardCached(pass);
    return absl::OkStatus();
  }
  WeightGradient head_gradient;
  const bool differentiates = pass.gradient_scale != nullptr;
  if (differentiates) head_gradient = pass.Gradient(kHead);
  WeightGradient* const wanted_gradient = differentiates ? &head_gradient : nullptr;
  CONVENE_RETURN_IF_ERROR(has_pairs()
                              ? ForwardPairs(pass, wanted_gradient)
                              : ForwardRows(pass, 0, shape_.rows,
                                            {pass.gradient_scale, pass.loss_sum, wanted_gradient}));
  if (!differentiates) return absl::OkStatus();
  DivideRows(At(memory.gradient), pass.stream);
  return rows.Sum(At(memory.gradient), pass.stream);
}

// Context-parallel ranks have a part of each answer: the first and the second half of their rows
// are the halves of the sample, by the zig-zag cut (ContextPositions).
template <typename T>
absl::Status LossHead<T>::ForwardPairs(const Pass<T>& pass, WeightGradient* head_gradient) {
  const int answers = 2 * shape_.samples;
  const int rows = shape_.rows / answers;
  for (int i = 0; i < answers; ++i) {
    CONVENE_RETURN_IF_ERROR(
        ForwardRows(pass, i * rows, rows, {.loss_sum = pass.answer_losses + i}));
  }
  Collective& cp = *pass.around.cp;
  if (cp.size() > 1) {
    CONVENE_RETURN_IF_ERROR(
        cp.AllReduce(Elements(pass.answer_losses, static_cast<size_t>(answers), DType::kFloat64),
                     ReduceOp::kSum, pass.stream));
  }
  if (pass.references == nullptr) return absl::OkStatus();
  double* const unwanted = At(unwanted_loss_);
  float* const weights = head_gradient != nullptr ? At(pair_weights_) : nullptr;
  PreferenceLoss(shape_.samples, shape_.preference_beta, pass.answer_losses, pass.references,
                 pass.gradient_scale, cp.rank() == 0 ? pass.loss_sum : unwanted,
                 cp.rank() == 0 ? pass.rewards : nullptr, weights, pass.stream);
  for (int i = 0; i < answers && head_gradient != nullptr; ++i) {
    CONVENE_RETURN_IF_ERROR(
        ForwardRows(pass, i * rows, rows, {weights + i, unwanted, head_gradient}));
  }
  return absl::OkStatus();
}

template <typename T>
absl::Status LossHead<T>::ForwardRows(const Pass<T>& pass, int first_row, int rows,
                                      const Wanted& wanted) {
  for (int first = 0; first < rows; first += chunk_rows_) {
    CONVENE_RETURN_IF_ERROR(
        ForwardChunk(pass, first_row + first, std::min(chunk_rows_, rows - first), wanted));
    if (wanted.head_gradient != nullptr) wanted.head_gradient->adds = true;
  }
  return absl::OkStatus();
}

template <typename T>
void LossHead<T>::ForwardCached(const Pass<T>& pass) const {
  int wanted = 0;
  for (const CachedRun& run : pass.around.cache->runs()) {
    CONVENE_CHECK(wanted + run.logits <= shape_.cached_logits);
    const int64_t first = run.first + run.count - run.logits;
    pass.around.device->Copy(At(normalized_memory_) + first * shape_.hidden,
                             At(last_memory_) + int64_t{wanted} * shape_.hidden,
                             size_t{1} * run.logits * shape_.hidden * sizeof(T), pass.stream);
    wanted += run.logits;
  }
  if (wanted == 0) return;
  const LinearShape linear = {wanted, shape_.vocabulary.size(), shape_.hidden};
  LinearForward(linear, At(last_memory_), pass.Weight(kHead), logits(), pass.stream);
  if (shape_.logit_cap == 0) return;
  SoftCap(int64_t{linear.rows} * linear.out, shape_.logit_cap, logits(), pass.stream);
}

template <typename T>
absl::Status LossHead<T>::ForwardChunk(const Pass<T>& pass, int first_row, int rows,
                                       const Wanted& wanted) {
  const LinearShape linear = {rows, shape_.vocabulary.size(), shape_.hidden};
  const int64_t offset = int64_t{first_row} * shape_.hidden;
  const T* const head = pass.Weight(kHead);
  const T* const normalized = At(normalized_memory_) + offset;
  T* const logits = At(logits_memory_);
  LinearForward(linear, normalized, head, logits, pass.stream);
  const int64_t count = int64_t{rows} * linear.out;
  const bool caps = shape_.logit_cap > 0;
  if (caps) {
    SoftCap(count, shape_.logit_cap, logits, pass.stream);
    pass.around.device->Copy(logits, At(capped_memory_), count * sizeof(T), pass.stream);
  }
  CONVENE_RETURN_IF_ERROR(VocabularyParallelCrossEntropy(
      shape_.vocabulary, rows, pass.targets + first_row, wanted.gradient_scale, Buffers(),
      wanted.loss_sum, logits, pass.around.rows->tp(), pass.stream));
  if (wanted.head_gradient == nullptr) return absl::OkStatus();
  if (caps) {
    SoftCapBackward(count, shape_.logit_cap, At(capped_memory_), logits, pass.stream);
  }
  LinearInputGradient(linear, head, logits, At(slots_[pass.head].gradient) + offset, pass.stream);
  LinearWeightGradient(linear, normalized, logits, *wanted.head_gradient, pass.stream);
  return absl::OkStatus();
}

template <typename T>
absl::Status LossHead<T>::Backward(const Pass<T>& pass, T* gradient) {
  const Memory& memory = slots_[pass.head];
  return NormBackward(NormOf(memory, pass), pass.input, At(memory.gradient), /*add_to_dx=*/false,
                      gradient, pass.Gradient(kFinalNorm), pass.Gradient(kFinalNormBias),
                      workspace(), *pass.around.rows, pass.stream);
}

template class LossHead<float>;
template class LossHead<BFloat16>;

}  // namespace convene::worker

#include "worker_runtime/model/block.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/model/parameters.h"
#include "worker_runtime/ops/rms_norm.h"
#include "worker_runtime/ops/swiglu.h"
#include "worker_runtime/parallel/linear.h"

namespace convene::worker {
namespace {

LinearShape QkvShape(const BlockShape& s) { return {s.rows(), s.qkv_width(), s.hidden}; }
LinearShape OutShape(const BlockShape& s) { return {s.rows(), s.hidden, s.attention_width()}; }
LinearShape GateUpShape(const BlockShape& s) { return {s.rows(), 2 * s.ffn, s.hidden}; }
LinearShape DownShape(const BlockShape& s) { return {s.rows(), s.hidden, s.ffn}; }

// Declares those tensors of a block that `wants_recomputed` asks for: the ones that the backward
// pass computes again, or the others.
template <typename T>
void Declare(const BlockShape& s, Recompute recompute, bool wants_recomputed, Arena& arena,
             BlockMemory<T>& memory) {
  const bool cheap_again = recompute != Recompute::kNone;
  const bool all_again = recompute == Recompute::kFull;
  const auto declare = [&]<typename E>(ArenaBlock<E>& block, bool is_recomputed, const char* name,
                                       int64_t count, ArenaPart part = ArenaPart::kLocal) {
    if (is_recomputed != wants_recomputed) return;
    block = arena.Declare<E>(absl::StrCat(wants_recomputed ? "recomputed/" : "activations/", name),
                             count, part);
  };
  const int64_t rows = s.rows();
  const int64_t own = s.residual_rows;
  // Where rows are split, both norms' outputs are gathered; blocks that make them again have
  // scratch for it (UnitSurroundings::normed).
  const int64_t normed = own < rows && cheap_again ? 0 : rows * s.hidden;
  const ArenaPart normed_part = own < rows ? ArenaPart::kCollective : ArenaPart::kLocal;
  declare(memory.norm1, cheap_again, "norm1", normed, normed_part);
  declare(memory.norm1_rms, all_again, "norm1 rms", own);
  declare(memory.qkv, all_again, "qkv", rows * s.qkv_width());
  declare(memory.attention, all_again, "attention", rows * s.attention_width());
  declare(memory.log_sum_exp, all_again, "log-sum-exp", rows * s.heads);
  declare(memory.middle, all_again, "middle", own * s.hidden);
  declare(memory.norm2, cheap_again, "norm2", normed, normed_part);
  declare(memory.norm2_rms, all_again, "norm2 rms", own);
  declare(memory.gate_up, all_again, "gate-up", rows * 2 * s.ffn);
  declare(memory.product, cheap_again, "product", rows * s.ffn);
}

}  // namespace

BlockShape MakeBlockShape(const ModelConfig& config, int tp_size, bool sequence_parallel,
                          int micro_batch_size, int sequence_length, bool deterministic,
                          bool packed) {
  const int rows = micro_batch_size * sequence_length;
  return {.batch = micro_batch_size,
          .sequence_length = sequence_length,
          .residual_rows = sequence_parallel ? rows / tp_size : rows,
          .hidden = config.hidden_size,
          .heads = config.heads / tp_size,
          .kv_heads = std::max(1, config.kv_heads / tp_size),
          .head_size = config.head_size,
          .ffn = config.ffn_size / tp_size,
          .norm_epsilon = static_cast<float>(config.norm_epsilon),
          .deterministic = deterministic,
          .packed = packed};
}

template <typename T>
BlockMemory<T> DeclareRecomputed(const BlockShape& shape, Recompute recompute, Arena& arena) {
  BlockMemory<T> memory;
  Declare(shape, recompute, /*wants_recomputed=*/true, arena, memory);
  return memory;
}

template <typename T>
std::vector<BlockMemory<T>> DeclareSaved(const BlockShape& shape, Recompute recompute,
                                         const BlockMemory<T>& recomputed, int slots,
                                         Arena& arena) {
  std::vector<BlockMemory<T>> memories(slots, recomputed);
  for (BlockMemory<T>& memory : memories) {
    Declare(shape, recompute, /*wants_recomputed=*/false, arena, memory);
  }
  return memories;
}

template <typename T>
ScratchSizes Block<T>::scratch() const {
  const int64_t rows = s_.rows();
  return {.wide = rows * std::max(s_.qkv_width(), 2 * s_.ffn),
          .narrow = rows * std::max(s_.attention_width(), s_.ffn),
          .workspace_bytes = RmsNormWorkspaceBytes(s_.residual_rows, s_.hidden, device_)};
}

template <typename T>
absl::Status Block<T>::FirstNorm(const Pass<T>& pass, const BlockMemory<T>& a,
                                 const Flow<T>& input) const {
  const ResidualRows& rows = *pass.around.rows;
  const T* const weight = pass.Weight(kAttentionNorm);
  T* const normed = Normed(pass, a.norm1);
  if (input.delta == nullptr) {
    RmsNormForward(rows.own(), s_.hidden, pass.input, weight, s_.norm_epsilon, rows.Own(normed),
                   At(a.norm1_rms), pass.stream);
  } else {
    AddRmsNormForward(rows.own(), s_.hidden, input.residual, input.delta, weight, s_.norm_epsilon,
                      pass.input, rows.Own(normed), At(a.norm1_rms), pass.stream);
  }
  return rows.Gather(normed, pass.stream);
}

// From norm1 to SwiGLU's product.
template <typename T>
absl::Status Block<T>::Middle(const Pass<T>& pass, const BlockMemory<T>& a) const {
  const UnitSurroundings<T>& around = pass.around;
  const ResidualRows& rows = *around.rows;
  LinearForward(QkvShape(s_), Normed(pass, a.norm1), pass.Weight(kQkv), At(a.qkv), pass.stream);
  CONVENE_RETURN_IF_ERROR(around.attention->Forward(pass.documents, At(a.qkv), At(a.attention),
                                                    At(a.log_sum_exp), around.workspace,
                                                    pass.stream));
  CONVENE_RETURN_IF_ERROR(RowParallelForward(
      OutShape(s_), At(a.attention), pass.Weight(kAttentionOut), around.hidden, rows, pass.stream));
  T* const normed = Normed(pass, a.norm2);
  AddRmsNormForward(rows.own(), s_.hidden, pass.input, rows.Own(around.hidden),
                    pass.Weight(kMlpNorm), s_.norm_epsilon, At(a.middle), rows.Own(normed),
                    At(a.norm2_rms), pass.stream);
  CONVENE_RETURN_IF_ERROR(rows.Gather(normed, pass.stream));
  LinearForward(GateUpShape(s_), normed, pass.Weight(kGateUp), At(a.gate_up), pass.stream);
  SwigluForward(s_.rows(), s_.ffn, At(a.gate_up), At(a.product), pass.stream);
  return absl::OkStatus();
}

template <typename T>
absl::Status Block<T>::Forward(const Pass<T>& pass, T* target, Flow<T>& flow) {
  const BlockMemory<T>& a = memory_[pass.slot];
  CONVENE_RETURN_IF_ERROR(FirstNorm(pass, a, flow));
  CONVENE_RETURN_IF_ERROR(Middle(pass, a));
  flow = {.residual = At(a.middle), .delta = pass.around.rows->Own(target)};
  return RowParallelForward(DownShape(s_), At(a.product), pass.Weight(kDown), target,
                            *pass.around.rows, pass.stream);
}

// Each half adds its branch's gradient to the residual stream's, which passes through unchanged.
template <typename T>
absl::Status Block<T>::MlpBackward(const Pass<T>& pass, const BlockMemory<T>& a,
                                   T* gradient) const {
  const UnitSurroundings<T>& around = pass.around;
  const ResidualRows& rows = *around.rows;
  T* const normed = Normed(pass, a.norm2);
  // After a full recomputation the scratch holds this norm's output already.
  if (recompute_ == Recompute::kSelective) {
    RmsNormAgain(rows.own(), s_.hidden, At(a.middle), pass.Weight(kMlpNorm), At(a.norm2_rms),
                 rows.Own(normed), pass.stream);
    CONVENE_RETURN_IF_ERROR(rows.Gather(normed, pass.stream));
    SwigluForward(s_.rows(), s_.ffn, At(a.gate_up), At(a.product), pass.stream);
  }
  CONVENE_RETURN_IF_ERROR(rows.Gather(gradient, pass.stream));
  RowParallelBackward(DownShape(s_), At(a.product), pass.Weight(kDown), gradient, around.narrow,
                      pass.Gradient(kDown), pass.stream);
  SwigluBackward(s_.rows(), s_.ffn, At(a.gate_up), around.narrow, around.wide, pass.stream);
  CONVENE_RETURN_IF_ERROR(ColumnParallelBackward(GateUpShape(s_), normed, pass.Weight(kGateUp),
                                                 around.wide, around.hidden, pass.Gradient(kGateUp),
                                                 rows, around.side, pass.stream));
  const WeightGradient norm = pass.Gradient(kMlpNorm);
  RmsNormBackward(rows.own(), s_.hidden, At(a.middle), pass.Weight(kMlpNorm), At(a.norm2_rms),
                  rows.Own(around.hidden), /*add_to_dx=*/true, rows.Own(gradient), norm.adds,
                  norm.data, around.workspace, pass.stream);
  return absl::OkStatus();
}

template <typename T>
absl::Status Block<T>::AttentionHalfBackward(const Pass<T>& pass, const BlockMemory<T>& a,
                                             T* gradient) const {
  const UnitSurroundings<T>& around = pass.around;
  const ResidualRows& rows = *around.rows;
  T* const normed = Normed(pass, a.norm1);
  if (recompute_ == Recompute::kSelective || SharesNormed(pass)) {
    RmsNormAgain(rows.own(), s_.hidden, pass.input, pass.Weight(kAttentionNorm), At(a.norm1_rms),
                 rows.Own(normed), pass.stream);
    CONVENE_RETURN_IF_ERROR(rows.Gather(normed, pass.stream));
  }
  CONVENE_RETURN_IF_ERROR(rows.Gather(gradient, pass.stream));
  RowParallelBackward(OutShape(s_), At(a.attention), pass.Weight(kAttentionOut), gradient,
                      around.narrow, pass.Gradient(kAttentionOut), pass.stream);
  CONVENE_RETURN_IF_ERROR(around.attention->Backward(pass.documents, At(a.qkv), At(a.attention),
                                                     At(a.log_sum_exp), around.narrow, around.wide,
                                                     around.workspace, pass.stream));
  CONVENE_RETURN_IF_ERROR(ColumnParallelBackward(QkvShape(s_), normed, pass.Weight(kQkv),
                                                 around.wide, around.hidden, pass.Gradient(kQkv),
                                                 rows, around.side, pass.stream));
  const WeightGradient norm = pass.Gradient(kAttentionNorm);
  RmsNormBackward(rows.own(), s_.hidden, pass.input, pass.Weight(kAttentionNorm), At(a.norm1_rms),
                  rows.Own(around.hidden), /*add_to_dx=*/true, rows.Own(gradient), norm.adds,
                  norm.data, around.workspace, pass.stream);
  return absl::OkStatus();
}

template <typename T>
absl::Status Block<T>::Backward(const Pass<T>& pass, T* gradient) {
  const BlockMemory<T>& a = memory_[pass.slot];
  if (recompute_ == Recompute::kFull) {
    CONVENE_RETURN_IF_ERROR(FirstNorm(pass, a, {}));
    CONVENE_RETURN_IF_ERROR(Middle(pass, a));
  }
  CONVENE_RETURN_IF_ERROR(MlpBackward(pass, a, gradient));
  return AttentionHalfBackward(pass, a, gradient);
}

// Query and key heads lie side by side at the start of each row, so one call turns both.
template BlockMemory<float> DeclareRecomputed(const BlockShape&, Recompute, Arena&);
template BlockMemory<BFloat16> DeclareRecomputed(const BlockShape&, Recompute, Arena&);
template std::vector<BlockMemory<float>> DeclareSaved(const BlockShape&, Recompute,
                                                      const BlockMemory<float>&, int, Arena&);
template std::vector<BlockMemory<BFloat16>> DeclareSaved(const BlockShape&, Recompute,
                                                         const BlockMemory<BFloat16>&, int, Arena&);
template class Block<float>;
template class Block<BFloat16>;

}  // namespace convene::worker

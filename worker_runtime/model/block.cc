#include "worker_runtime/model/block.h"

#include "tools/base/status_macros.h"
#include "worker_runtime/ops/elementwise.h"
#include "worker_runtime/ops/rms_norm.h"
#include "worker_runtime/ops/rope.h"
#include "worker_runtime/ops/swiglu.h"
#include "worker_runtime/parallel/linear.h"

namespace convene::worker {
namespace {

LinearShape QkvShape(const BlockShape& s) { return {s.rows(), s.qkv_width(), s.hidden}; }
LinearShape OutShape(const BlockShape& s) { return {s.rows(), s.hidden, s.attention_width()}; }
LinearShape GateUpShape(const BlockShape& s) { return {s.rows(), 2 * s.ffn, s.hidden}; }
LinearShape DownShape(const BlockShape& s) { return {s.rows(), s.hidden, s.ffn}; }

int64_t HiddenCount(const BlockShape& s) { return int64_t{s.rows()} * s.hidden; }

// Query and key heads lie side by side at the start of each row, so one call turns both.
void Rotate(const BlockShape& s, const BlockContext& context, bool inverse, float* qkv,
            Stream& stream) {
  RopeApply(s.batch, s.sequence_length, s.heads + s.kv_heads, s.head_size, s.qkv_width(),
            context.rope_cosines, context.rope_sines, inverse, qkv, stream);
}

absl::Status AttentionHalfBackward(const BlockShape& s, const BlockContext& context,
                                   const BlockParameters& p, const float* w, float* dw,
                                   const BlockActivations& a, const BlockScratch& scratch,
                                   float* gradient, Stream& stream) {
  RowParallelBackward(OutShape(s), a.attention, w + p.attention_out, gradient, scratch.narrow,
                      dw + p.attention_out, stream);
  AttentionBackward(s.attention(), a.qkv, a.attention, a.log_sum_exp, scratch.narrow, scratch.wide,
                    scratch.attention_workspace, stream);
  Rotate(s, context, /*inverse=*/true, scratch.wide, stream);
  CONVENE_RETURN_IF_ERROR(ColumnParallelBackward(QkvShape(s), a.norm1, w + p.qkv, scratch.wide,
                                                 scratch.hidden, dw + p.qkv, *context.tp, stream));
  RmsNormBackward(s.rows(), s.hidden, a.input, w + p.attention_norm, a.norm1_rms, scratch.hidden,
                  gradient, dw + p.attention_norm, stream);
  return absl::OkStatus();
}

absl::Status MlpHalfBackward(const BlockShape& s, const BlockContext& context,
                             const BlockParameters& p, const float* w, float* dw,
                             const BlockActivations& a, const BlockScratch& scratch,
                             float* gradient, Stream& stream) {
  RowParallelBackward(DownShape(s), a.product, w + p.down, gradient, scratch.narrow, dw + p.down,
                      stream);
  SwigluBackward(s.rows(), s.ffn, a.gate_up, scratch.narrow, scratch.wide, stream);
  CONVENE_RETURN_IF_ERROR(ColumnParallelBackward(GateUpShape(s), a.norm2, w + p.gate_up,
                                                 scratch.wide, scratch.hidden, dw + p.gate_up,
                                                 *context.tp, stream));
  RmsNormBackward(s.rows(), s.hidden, a.middle, w + p.mlp_norm, a.norm2_rms, scratch.hidden,
                  gradient, dw + p.mlp_norm, stream);
  return absl::OkStatus();
}

}  // namespace

BlockShape MakeBlockShape(const ModelConfig& config, int tp_size, int micro_batch_size,
                          int sequence_length) {
  return {.batch = micro_batch_size,
          .sequence_length = sequence_length,
          .hidden = config.hidden_size,
          .heads = config.heads / tp_size,
          .kv_heads = config.kv_heads / tp_size,
          .head_size = config.head_size,
          .ffn = config.ffn_size / tp_size,
          .norm_epsilon = static_cast<float>(config.norm_epsilon)};
}

absl::Status BlockForward(const BlockShape& s, const BlockContext& context,
                          const BlockParameters& p, const float* w, const BlockActivations& a,
                          float* y, float* attention_workspace, Stream& stream) {
  RmsNormForward(s.rows(), s.hidden, a.input, w + p.attention_norm, s.norm_epsilon, a.norm1,
                 a.norm1_rms, stream);
  ColumnParallelForward(QkvShape(s), a.norm1, w + p.qkv, a.qkv, stream);
  Rotate(s, context, /*inverse=*/false, a.qkv, stream);
  AttentionForward(s.attention(), a.qkv, a.attention, a.log_sum_exp, attention_workspace, stream);
  CONVENE_RETURN_IF_ERROR(RowParallelForward(OutShape(s), a.attention, w + p.attention_out,
                                             a.middle, *context.tp, stream));
  AddInPlace(HiddenCount(s), a.input, a.middle, stream);

  RmsNormForward(s.rows(), s.hidden, a.middle, w + p.mlp_norm, s.norm_epsilon, a.norm2, a.norm2_rms,
                 stream);
  ColumnParallelForward(GateUpShape(s), a.norm2, w + p.gate_up, a.gate_up, stream);
  SwigluForward(s.rows(), s.ffn, a.gate_up, a.product, stream);
  CONVENE_RETURN_IF_ERROR(
      RowParallelForward(DownShape(s), a.product, w + p.down, y, *context.tp, stream));
  AddInPlace(HiddenCount(s), a.middle, y, stream);
  return absl::OkStatus();
}

absl::Status BlockBackward(const BlockShape& s, const BlockContext& context,
                           const BlockParameters& p, const float* w, float* dw,
                           const BlockActivations& a, const BlockScratch& scratch, float* gradient,
                           Stream& stream) {
  // Each half adds its branch's gradient to the residual stream's, which passes through unchanged.
  CONVENE_RETURN_IF_ERROR(MlpHalfBackward(s, context, p, w, dw, a, scratch, gradient, stream));
  return AttentionHalfBackward(s, context, p, w, dw, a, scratch, gradient, stream);
}

}  // namespace convene::worker

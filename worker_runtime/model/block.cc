#include "worker_runtime/model/block.h"

#include <algorithm>

#include "tools/base/status_macros.h"
#include "worker_runtime/ops/rms_norm.h"
#include "worker_runtime/ops/rope.h"
#include "worker_runtime/ops/swiglu.h"

namespace convene::worker {
namespace {

LinearShape QkvShape(const BlockShape& s) { return {s.rows(), s.qkv_width(), s.hidden}; }
LinearShape OutShape(const BlockShape& s) { return {s.rows(), s.hidden, s.attention_width()}; }
LinearShape GateUpShape(const BlockShape& s) { return {s.rows(), 2 * s.ffn, s.hidden}; }
LinearShape DownShape(const BlockShape& s) { return {s.rows(), s.hidden, s.ffn}; }

// The passes of one block over one microbatch, and the state that they share.
template <typename T>
class BlockPass {
 public:
  BlockPass(const BlockShape& shape, const BlockContext& context, const BlockParameters& offsets,
            const T* parameters, const BlockActivations<T>& activations,
            const BlockScratch<T>& scratch, Stream& stream)
      : s_(shape),
        context_(context),
        p_(offsets),
        w_(parameters),
        a_(activations),
        scratch_(scratch),
        stream_(stream) {}

  void FirstNorm(const BlockInput<T>& input) {
    if (input.delta == nullptr) {
      RmsNormForward(s_.rows(), s_.hidden, a_.input, w_ + p_.attention_norm, s_.norm_epsilon,
                     a_.norm1, a_.norm1_rms, stream_);
    } else {
      AddRmsNormForward(s_.rows(), s_.hidden, input.residual, input.delta, w_ + p_.attention_norm,
                        s_.norm_epsilon, a_.input, a_.norm1, a_.norm1_rms, stream_);
    }
  }

  // From norm1 to SwiGLU's product.
  absl::Status Middle() {
    LinearForward(QkvShape(s_), a_.norm1, w_ + p_.qkv, a_.qkv, stream_);
    Rotate(/*inverse=*/false, a_.qkv);
    AttentionForward(s_.attention(), context_.documents, a_.qkv, a_.attention, a_.log_sum_exp,
                     scratch_.workspace, stream_);
    T* const delta = scratch_.hidden;
    CONVENE_RETURN_IF_ERROR(RowParallelForward(OutShape(s_), a_.attention, w_ + p_.attention_out,
                                               delta, *context_.tp, stream_));
    AddRmsNormForward(s_.rows(), s_.hidden, a_.input, delta, w_ + p_.mlp_norm, s_.norm_epsilon,
                      a_.middle, a_.norm2, a_.norm2_rms, stream_);
    LinearForward(GateUpShape(s_), a_.norm2, w_ + p_.gate_up, a_.gate_up, stream_);
    SwigluForward(s_.rows(), s_.ffn, a_.gate_up, a_.product, stream_);
    return absl::OkStatus();
  }

  absl::Status Down(T* delta) {
    return RowParallelForward(DownShape(s_), a_.product, w_ + p_.down, delta, *context_.tp,
                              stream_);
  }

  // Each half adds its branch's gradient to the residual stream's, which passes through unchanged.
  absl::Status MlpBackward(const WeightGradient& dw, T* gradient) {
    if (context_.recompute == Recompute::kSelective) {
      RmsNormAgain(s_.rows(), s_.hidden, a_.middle, w_ + p_.mlp_norm, a_.norm2_rms, a_.norm2,
                   stream_);
      SwigluForward(s_.rows(), s_.ffn, a_.gate_up, a_.product, stream_);
    }
    RowParallelBackward(DownShape(s_), a_.product, w_ + p_.down, gradient, scratch_.narrow,
                        dw.At(p_.down), stream_);
    SwigluBackward(s_.rows(), s_.ffn, a_.gate_up, scratch_.narrow, scratch_.wide, stream_);
    CONVENE_RETURN_IF_ERROR(ColumnParallelBackward(
        GateUpShape(s_), a_.norm2, w_ + p_.gate_up, scratch_.wide, scratch_.hidden,
        dw.At(p_.gate_up), *context_.tp, context_.side, stream_));
    RmsNormBackward(s_.rows(), s_.hidden, a_.middle, w_ + p_.mlp_norm, a_.norm2_rms,
                    scratch_.hidden, /*add_to_dx=*/true, gradient, dw.adds, dw.data + p_.mlp_norm,
                    scratch_.workspace, stream_);
    return absl::OkStatus();
  }

  absl::Status AttentionHalfBackward(const WeightGradient& dw, T* gradient) {
    if (context_.recompute == Recompute::kSelective) {
      RmsNormAgain(s_.rows(), s_.hidden, a_.input, w_ + p_.attention_norm, a_.norm1_rms, a_.norm1,
                   stream_);
    }
    RowParallelBackward(OutShape(s_), a_.attention, w_ + p_.attention_out, gradient,
                        scratch_.narrow, dw.At(p_.attention_out), stream_);
    AttentionBackward(s_.attention(), context_.documents, a_.qkv, a_.attention, a_.log_sum_exp,
                      scratch_.narrow, scratch_.wide, scratch_.workspace, stream_);
    Rotate(/*inverse=*/true, scratch_.wide);
    CONVENE_RETURN_IF_ERROR(ColumnParallelBackward(QkvShape(s_), a_.norm1, w_ + p_.qkv,
                                                   scratch_.wide, scratch_.hidden, dw.At(p_.qkv),
                                                   *context_.tp, context_.side, stream_));
    RmsNormBackward(s_.rows(), s_.hidden, a_.input, w_ + p_.attention_norm, a_.norm1_rms,
                    scratch_.hidden, /*add_to_dx=*/true, gradient, dw.adds,
                    dw.data + p_.attention_norm, scratch_.workspace, stream_);
    return absl::OkStatus();
  }

 private:
  // Query and key heads lie side by side at the start of each row, so one call turns both.
  void Rotate(bool inverse, T* qkv) {
    RopeApply(s_.batch, s_.sequence_length, s_.heads + s_.kv_heads, s_.head_size, s_.qkv_width(),
              context_.rope_cosines, context_.rope_sines, context_.documents.begin, inverse, qkv,
              stream_);
  }

  const BlockShape& s_;
  const BlockContext& context_;
  const BlockParameters& p_;
  const T* const w_;
  const BlockActivations<T>& a_;
  const BlockScratch<T>& scratch_;
  Stream& stream_;
};

}  // namespace

BlockShape MakeBlockShape(const ModelConfig& config, int tp_size, int micro_batch_size,
                          int sequence_length, bool deterministic, bool packed) {
  return {.batch = micro_batch_size,
          .sequence_length = sequence_length,
          .hidden = config.hidden_size,
          .heads = config.heads / tp_size,
          .kv_heads = config.kv_heads / tp_size,
          .head_size = config.head_size,
          .ffn = config.ffn_size / tp_size,
          .norm_epsilon = static_cast<float>(config.norm_epsilon),
          .deterministic = deterministic,
          .packed = packed};
}

template <typename T>
size_t BlockWorkspaceBytes(const BlockShape& shape, DeviceKind device) {
  return std::max(AttentionWorkspaceBytes<T>(shape.attention(), device),
                  RmsNormWorkspaceBytes(shape.rows(), shape.hidden, device));
}

template <typename T>
absl::Status BlockForward(const BlockShape& shape, const BlockContext& context,
                          const BlockParameters& offsets, const T* parameters,
                          const BlockInput<T>& input, const BlockActivations<T>& activations,
                          const BlockScratch<T>& scratch, T* delta, Stream& stream) {
  BlockPass<T> pass(shape, context, offsets, parameters, activations, scratch, stream);
  pass.FirstNorm(input);
  CONVENE_RETURN_IF_ERROR(pass.Middle());
  return pass.Down(delta);
}

template <typename T>
absl::Status BlockBackward(const BlockShape& shape, const BlockContext& context,
                           const BlockParameters& offsets, const T* parameters,
                           const WeightGradient& gradients, const BlockActivations<T>& activations,
                           const BlockScratch<T>& scratch, T* gradient, Stream& stream) {
  BlockPass<T> pass(shape, context, offsets, parameters, activations, scratch, stream);
  if (context.recompute == Recompute::kFull) {
    pass.FirstNorm({});
    CONVENE_RETURN_IF_ERROR(pass.Middle());
  }
  CONVENE_RETURN_IF_ERROR(pass.MlpBackward(gradients, gradient));
  return pass.AttentionHalfBackward(gradients, gradient);
}

// NOLINTBEGIN(bugprone-macro-parentheses): a type cannot stand in parentheses
#define CONVENE_INSTANTIATE(T)                                                                \
  template size_t BlockWorkspaceBytes<T>(const BlockShape&, DeviceKind);                      \
  template absl::Status BlockForward(                                                         \
      const BlockShape&, const BlockContext&, const BlockParameters&, const T*,               \
      const BlockInput<T>&, const BlockActivations<T>&, const BlockScratch<T>&, T*, Stream&); \
  template absl::Status BlockBackward(                                                        \
      const BlockShape&, const BlockContext&, const BlockParameters&, const T*,               \
      const WeightGradient&, const BlockActivations<T>&, const BlockScratch<T>&, T*, Stream&)
// NOLINTEND(bugprone-macro-parentheses)
CONVENE_INSTANTIATE(float);
CONVENE_INSTANTIATE(BFloat16);
#undef CONVENE_INSTANTIATE

}  // namespace convene::worker

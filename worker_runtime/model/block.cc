#include "worker_runtime/model/block.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "tools/base/check.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/model/parameters.h"
#include "worker_runtime/ops/instantiate.h"
#include "worker_runtime/ops/rms_norm.h"
#include "worker_runtime/ops/swiglu.h"

namespace convene::worker {
namespace {

LinearShape QkvShape(const BlockShape& s) { return {s.rows(), s.qkv_width(), s.hidden}; }
LinearShape OutShape(const BlockShape& s) { return {s.rows(), s.hidden, s.attention_width()}; }
LinearShape GateUpShape(const BlockShape& s) { return {s.rows(), 2 * s.ffn, s.hidden}; }
LinearShape DownShape(const BlockShape& s) { return {s.rows(), s.hidden, s.ffn}; }

// Whether the gradient of query, key and value has room where the MLP's was, used up by then.
bool HasWidePlace(const BlockShape& s) { return s.qkv_width() <= 2 * s.ffn; }

// The sets in which a block's tensors lie.
enum class Set { kSaved, kRecomputed, kDeferred };

// Declares those tensors of a block that lie in the set.
template <typename T>
void Declare(const BlockShape& s, const Recompute& recompute, Set set, Arena& arena,
             BlockMemory<T>& memory) {
  const auto declare = [&]<typename E>(ArenaBlock<E>& block, bool is_recomputed, bool is_factor,
                                       const char* name, int64_t count,
                                       ArenaPart part = ArenaPart::kLocal) {
    constexpr const char* kNames[] = {"activations/", "recomputed/", "deferred/"};
    if (is_recomputed != (set != Set::kSaved) || (set == Set::kDeferred && !is_factor)) return;
    block = arena.Declare<E>(absl::StrCat(kNames[static_cast<int>(set)], name), count, part);
  };
  const int64_t rows = s.rows();
  const int64_t own = s.residual_rows;
  const bool is_split = own < rows;
  const ArenaPart normed_part = is_split ? ArenaPart::kCollective : ArenaPart::kLocal;
  declare(memory.norm1, recompute.norms, true, "norm1", rows * s.hidden, normed_part);
  declare(memory.norm1_rms, false, false, "norm1 rms", own);
  declare(memory.qkv, recompute.attention, false, "qkv", rows * s.qkv_width());
  declare(memory.attention, recompute.attention, true, "attention", rows * s.attention_width());
  declare(memory.log_sum_exp, recompute.attention, false, "log-sum-exp", rows * s.heads);
  declare(memory.middle, recompute.middle, false, "middle", own * s.hidden);
  if (is_split && set == Set::kRecomputed) {
    memory.norm2 = memory.norm1;
  } else {
    declare(memory.norm2, recompute.norms, true, "norm2", rows * s.hidden, normed_part);
  }
  declare(memory.norm2_rms, false, false, "norm2 rms", own);
  declare(memory.gate_up, recompute.mlp, false, "gate-up", rows * 2 * s.ffn);
  declare(memory.product, recompute.swiglu, true, "product", rows * s.ffn);
}

}  // namespace

LinearShape LinearShapeOf(const BlockShape& shape, BlockTensor tensor) {
  switch (tensor) {
    case kQkv:
      return QkvShape(shape);
    case kAttentionOut:
      return OutShape(shape);
    case kGateUp:
      return GateUpShape(shape);
    case kDown:
      return DownShape(shape);
    case kAttentionNorm:
    case kMlpNorm:
      break;
  }
  CONVENE_CHECK(false);
}

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
BlockMemory<T> DeclareRecomputed(const BlockShape& shape, const Recompute& recompute,
                                 Arena& arena) {
  BlockMemory<T> memory;
  Declare(shape, recompute, Set::kRecomputed, arena, memory);
  return memory;
}

template <typename T>
std::vector<BlockMemory<T>> DeclareSaved(const BlockShape& shape, const Recompute& recompute,
                                         const BlockMemory<T>& recomputed, int slots,
                                         Arena& arena) {
  std::vector<BlockMemory<T>> memories(slots, recomputed);
  for (BlockMemory<T>& memory : memories) Declare(shape, recompute, Set::kSaved, arena, memory);
  return memories;
}

template <typename T>
std::vector<BlockDeferred<T>> DeclareDeferred(const BlockShape& s, const Recompute& recompute,
                                              int slots, Arena& arena) {
  const int64_t rows = s.rows();
  std::vector<BlockDeferred<T>> memories(slots);
  for (BlockDeferred<T>& memory : memories) {
    memory.qkv = arena.Declare<T>("deferred/qkv gradient", rows * s.qkv_width());
    memory.attention_out = arena.Declare<T>("deferred/attention out gradient", rows * s.hidden);
    memory.gate_up = arena.Declare<T>("deferred/gate-up gradient", rows * 2 * s.ffn);
    memory.down = arena.Declare<T>("deferred/down gradient", rows * s.hidden);
    Declare(s, recompute, Set::kDeferred, arena, memory.factors);
  }
  return memories;
}

template <typename T>
ScratchSizes Block<T>::scratch(DeviceKind device) const {
  const int64_t rows = s_.rows();
  return {.wide = HasWidePlace(s_) ? 0 : rows * s_.qkv_width(),
          .narrow = rows * std::max(s_.attention_width(),
                                    deferred_.empty() && !pipes_gradient_ ? 0 : s_.ffn),
          .workspace_bytes = RmsNormWorkspaceBytes(s_.residual_rows, s_.hidden, device)};
}

template <typename T>
BlockMemory<T> Block<T>::MemoryOf(const Pass<T>& pass) const {
  BlockMemory<T> a = memory_[pass.slot];
  if (pass.deferred < 0) return a;
  const BlockMemory<T>& factors = deferred_[pass.deferred].factors;
  if (recompute_.norms) a.norm1 = factors.norm1;
  if (recompute_.norms) a.norm2 = factors.norm2;
  if (recompute_.attention) a.attention = factors.attention;
  if (recompute_.swiglu) a.product = factors.product;
  return a;
}

template <typename T>
absl::Status Block<T>::FirstNormAgain(const Pass<T>& pass, const BlockMemory<T>& a) const {
  return NormAgain(NormOf(pass, kAttentionNorm, a.norm1_rms), pass.input, At(a.norm1),
                   *pass.around.rows, pass.stream);
}

template <typename T>
absl::Status Block<T>::SecondNormAgain(const Pass<T>& pass, const BlockMemory<T>& a) const {
  return NormAgain(NormOf(pass, kMlpNorm, a.norm2_rms), At(a.middle), At(a.norm2),
                   *pass.around.rows, pass.stream);
}

template <typename T>
absl::Status Block<T>::Attention(const Pass<T>& pass, const BlockMemory<T>& a) const {
  CONVENE_RETURN_IF_ERROR(ColumnParallelForward(QkvShape(s_), At(a.norm1), pass.Weight(kQkv),
                                                float8_.Layer(pass, kQkv), At(a.qkv),
                                                *pass.around.rows, pass.stream));
  return pass.around.attention->Forward(pass.documents, At(a.qkv), At(a.attention),
                                        At(a.log_sum_exp), pass.around.workspace, pass.stream);
}

template <typename T>
absl::Status Block<T>::Middle(const Pass<T>& pass, const BlockMemory<T>& a) const {
  T* const hidden = pass.around.hidden;
  ChunkedRows& rows = *pass.around.rows;
  CONVENE_RETURN_IF_ERROR(
      RowParallelForward(OutShape(s_), At(a.attention), pass.Weight(kAttentionOut),
                         float8_.Layer(pass, kAttentionOut), hidden, rows, pass.stream));
  return NormForward(NormOf(pass, kMlpNorm, a.norm2_rms), pass.input, hidden, At(a.middle),
                     At(a.norm2), rows, pass.stream);
}

template <typename T>
absl::Status Block<T>::GateUp(const Pass<T>& pass, const BlockMemory<T>& a) const {
  return ColumnParallelForward(GateUpShape(s_), At(a.norm2), pass.Weight(kGateUp),
                               float8_.Layer(pass, kGateUp), At(a.gate_up), *pass.around.rows,
                               pass.stream);
}

template <typename T>
absl::Status Block<T>::Forward(const Pass<T>& pass, T* target, Flow<T>& flow) {
  const BlockMemory<T>& a = memory_[pass.slot];
  ChunkedRows& rows = *pass.around.rows;
  if (float8_.is_on && (pass.is_first || !float8_.keeps_weights)) {
    CONVENE_RETURN_IF_ERROR(RoundWeights(s_, float8_, pass));
  }
  CONVENE_RETURN_IF_ERROR(NormForward(NormOf(pass, kAttentionNorm, a.norm1_rms), flow.residual,
                                      flow.delta, pass.input, At(a.norm1), rows, pass.stream));
  CONVENE_RETURN_IF_ERROR(Attention(pass, a));
  CONVENE_RETURN_IF_ERROR(Middle(pass, a));
  CONVENE_RETURN_IF_ERROR(GateUp(pass, a));
  SwigluForward(s_.rows(), s_.ffn, At(a.gate_up), At(a.product), pass.stream);
  flow = {.residual = At(a.middle), .delta = target};
  return RowParallelForward(DownShape(s_), At(a.product), pass.Weight(kDown),
                            float8_.Layer(pass, kDown), target, rows, pass.stream);
}

// Each branch adds its gradient to the residual stream's, which passes through unchanged. A norm's
// output that comes again is gathered before the gradient where a product waits for it, else behind
// it.
template <typename T>
absl::Status Block<T>::MlpBackward(const Pass<T>& pass, const BlockMemory<T>& a,
                                   T* gradient) const {
  const UnitSurroundings<T>& around = pass.around;
  ChunkedRows& rows = *around.rows;
  // With the middle norm2's output came again too.
  const bool norm_again = recompute_.norms && !recompute_.middle;
  if (norm_again && recompute_.mlp) CONVENE_RETURN_IF_ERROR(SecondNormAgain(pass, a));
  if (recompute_.mlp) CONVENE_RETURN_IF_ERROR(GateUp(pass, a));
  CONVENE_RETURN_IF_ERROR(rows.StartGather(gradient, pass.stream));
  if (norm_again && !recompute_.mlp) CONVENE_RETURN_IF_ERROR(SecondNormAgain(pass, a));
  if (recompute_.swiglu) {
    SwigluForward(s_.rows(), s_.ffn, At(a.gate_up), At(a.product), pass.stream);
  }
  // Gradients take the places of what they are the gradients of, unless a weight half or a weight
  // product behind them wants both.
  T* const product = pass.deferred >= 0 || pipes_gradient_ ? around.narrow : At(a.product);
  T* gate_up = At(a.gate_up);
  CONVENE_RETURN_IF_ERROR(RowParallelBackward(DownShape(s_), At(a.product), pass.Weight(kDown),
                                              float8_.Layer(pass, kDown), gradient, product,
                                              ProductGradient(pass, kDown), rows, pass.stream));
  if (pass.deferred >= 0) {
    const BlockDeferred<T>& later = deferred_[pass.deferred];
    Keep(pass, gradient, later.down);
    gate_up = At(later.gate_up);
  }
  SwigluBackward(s_.rows(), s_.ffn, At(a.gate_up), product, gate_up, pass.stream);
  CONVENE_RETURN_IF_ERROR(ColumnParallelBackward(
      GateUpShape(s_), At(a.norm2), pass.Weight(kGateUp), float8_.Layer(pass, kGateUp), gate_up,
      around.hidden, ProductGradient(pass, kGateUp), rows, pass.stream));
  return NormBackward(NormOf(pass, kMlpNorm, a.norm2_rms), At(a.middle), around.hidden,
                      /*add_to_dx=*/true, gradient, pass.Gradient(kMlpNorm), around.workspace, rows,
                      pass.stream);
}

template <typename T>
absl::Status Block<T>::AttentionBranchBackward(const Pass<T>& pass, const BlockMemory<T>& a,
                                               T* gradient) const {
  const UnitSurroundings<T>& around = pass.around;
  ChunkedRows& rows = *around.rows;
  // With the middle attention came again too, and norm1's output before it, which lasts where
  // norm2's has another place.
  const bool shares_norms = rows.is_split() && pass.deferred < 0;
  const bool norm_again = recompute_.norms && (!recompute_.middle || shares_norms);
  const bool attention_again = recompute_.attention && !recompute_.middle;
  if (norm_again && attention_again) CONVENE_RETURN_IF_ERROR(FirstNormAgain(pass, a));
  if (attention_again) CONVENE_RETURN_IF_ERROR(Attention(pass, a));
  CONVENE_RETURN_IF_ERROR(rows.StartGather(gradient, pass.stream));
  if (norm_again && !attention_again) CONVENE_RETURN_IF_ERROR(FirstNormAgain(pass, a));
  CONVENE_RETURN_IF_ERROR(RowParallelBackward(
      OutShape(s_), At(a.attention), pass.Weight(kAttentionOut), float8_.Layer(pass, kAttentionOut),
      gradient, around.narrow, ProductGradient(pass, kAttentionOut), rows, pass.stream));
  T* qkv = HasWidePlace(s_) ? At(a.gate_up) : around.wide;
  if (pass.deferred >= 0) {
    const BlockDeferred<T>& later = deferred_[pass.deferred];
    Keep(pass, gradient, later.attention_out);
    qkv = At(later.qkv);
  }
  // Attention may have collectives of its own in `stream`, and never two run there and beside it.
  CONVENE_RETURN_IF_ERROR(rows.Finish(At(a.norm1), pass.stream));
  CONVENE_RETURN_IF_ERROR(around.attention->Backward(pass.documents, At(a.qkv), At(a.attention),
                                                     At(a.log_sum_exp), around.narrow, qkv,
                                                     around.workspace, pass.stream));
  CONVENE_RETURN_IF_ERROR(ColumnParallelBackward(QkvShape(s_), At(a.norm1), pass.Weight(kQkv),
                                                 float8_.Layer(pass, kQkv), qkv, around.hidden,
                                                 ProductGradient(pass, kQkv), rows, pass.stream));
  return NormBackward(NormOf(pass, kAttentionNorm, a.norm1_rms), pass.input, around.hidden,
                      /*add_to_dx=*/true, gradient, pass.Gradient(kAttentionNorm), around.workspace,
                      rows, pass.stream);
}

template <typename T>
absl::Status Block<T>::Backward(const Pass<T>& pass, T* gradient) {
  const BlockMemory<T> a = MemoryOf(pass);
  if (float8_.is_on && !float8_.keeps_weights) {
    CONVENE_RETURN_IF_ERROR(RoundWeights(s_, float8_, pass));
  }
  if (recompute_.middle) {
    CONVENE_RETURN_IF_ERROR(FirstNormAgain(pass, a));
    CONVENE_RETURN_IF_ERROR(Attention(pass, a));
    CONVENE_RETURN_IF_ERROR(Middle(pass, a));
  }
  CONVENE_RETURN_IF_ERROR(MlpBackward(pass, a, gradient));
  return AttentionBranchBackward(pass, a, gradient);
}

template <typename T>
void Block<T>::BackwardWeight(const Pass<T>& pass) {
  const BlockMemory<T> a = MemoryOf(pass);
  const BlockDeferred<T>& later = deferred_[pass.deferred];
  const auto product = [&](const LinearShape& shape, ArenaBlock<T> x, ArenaBlock<T> dy,
                           BlockTensor tensor) {
    LaterWeightGradient(shape, At(x), float8_.Layer(pass, tensor), At(dy),
                        pass.LaterGradient(tensor), pass.stream);
  };
  product(DownShape(s_), a.product, later.down, kDown);
  product(GateUpShape(s_), a.norm2, later.gate_up, kGateUp);
  product(OutShape(s_), a.attention, later.attention_out, kAttentionOut);
  product(QkvShape(s_), a.norm1, later.qkv, kQkv);
}

// `gradient` goes on changing on its way through the block.
template <typename T>
void Block<T>::Keep(const Pass<T>& pass, const T* gradient, ArenaBlock<T> place) const {
  const absl::Span<T> kept = place.span();
  pass.around.device->Copy(gradient, kept.data(), kept.size() * sizeof(T), pass.stream);
}

CONVENE_INSTANTIATE(DeclareRecomputed);
CONVENE_INSTANTIATE(DeclareSaved);
CONVENE_INSTANTIATE(DeclareDeferred);
template class Block<float>;
template class Block<BFloat16>;

}  // namespace convene::worker

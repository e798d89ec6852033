#include "worker_runtime/model/grouped_query_mixer.h"

#include <algorithm>
#include <utility>

#include "tools/base/status_macros.h"
#include "worker_runtime/ops/bias.h"
#include "worker_runtime/ops/instantiate.h"

namespace convene::worker {

template <typename T>
void DeclareMixer(const BlockShape& s, const Recompute& recompute, const SetDeclarer& declare,
                  MixerMemory<T>& memory) {
  const int64_t rows = s.rows();
  declare(memory.qkv, recompute.attention, false, "qkv", rows * s.qkv_width());
  if (s.family->query_key_norms) {
    const int64_t heads = rows * (s.heads + s.kv_heads);
    declare(memory.heads, recompute.attention, false, "heads", heads * s.head_size);
    declare(memory.heads_rms, recompute.attention, false, "heads rms", heads);
  }
  if (s.family->latent_attention) {
    const int64_t ranks = s.query_rank + s.key_rank;
    declare(memory.heads, recompute.attention, false, "latents before norms", rows * ranks);
    declare(memory.heads_rms, recompute.attention, false, "latents rms", rows * 2);
    declare(memory.latents, recompute.attention, true, "latents", rows * ranks);
  }
  declare(memory.attention, recompute.attention, true, "attention", rows * s.attention_width());
  declare(memory.log_sum_exp, recompute.attention, false, "log-sum-exp", rows * s.heads);
}

template <typename T>
void DeclareMixerGradients(const BlockShape& s, Arena& arena, MixerDeferred<T>& memory) {
  const int64_t rows = s.rows();
  memory.qkv = arena.Declare<T>("deferred/qkv gradient", rows * s.first_width());
  memory.out = arena.Declare<T>("deferred/attention out gradient", rows * s.hidden);
  if (s.family->latent_attention) {
    memory.up = arena.Declare<T>("deferred/up gradient",
                                 rows * (s.attention_width() + s.key_value_width()));
  }
}

template <typename T>
GroupedQueryMixer<T>::GroupedQueryMixer(const BlockShape& shape, const LayerAttention& layer,
                                        const Recompute& recompute,
                                        std::vector<MixerMemory<T>> memory,
                                        std::vector<MixerDeferred<T>> deferred,
                                        const BlockLinears<T>& linears)
    : s_(shape),
      layer_(layer),
      recompute_(recompute),
      memory_(std::move(memory)),
      deferred_(std::move(deferred)),
      linears_(linears) {}

template <typename T>
ScratchSizes GroupedQueryMixer<T>::scratch(DeviceKind device, int64_t spare) const {
  const int64_t rows = s_.rows();
  const int64_t wide = rows * s_.qkv_width();
  const int biases =
      std::max(s_.family->qkv_biases ? s_.qkv_width() : 0, s_.family->other_biases ? s_.hidden : 0);
  ScratchSizes sizes = {.wide = wide <= spare ? 0 : wide,
                        .narrow = rows * s_.attention_width(),
                        .workspace_bytes = BiasWorkspaceBytes(s_.rows(), biases, device)};
  for (const HeadNorm& norm : HeadNorms()) {
    sizes.Include({.workspace_bytes = HeadNormWorkspaceBytes(norm.shape, device)});
  }
  return sizes;
}

template <typename T>
MixerMemory<T> GroupedQueryMixer<T>::MemoryOf(const Pass<T>& pass) const {
  MixerMemory<T> a = memory_[pass.slot];
  if (pass.deferred >= 0) TakeDeferred(deferred_[pass.deferred].factors.attention, a.attention);
  return a;
}

template <typename T>
absl::InlinedVector<typename GroupedQueryMixer<T>::HeadNorm, 2> GroupedQueryMixer<T>::HeadNorms()
    const {
  if (!s_.family->query_key_norms) return {};
  const auto rows_of = [&](int heads) {
    return s_.family->whole_norms ? HeadRows{s_.rows(), 1, heads * s_.head_size}
                                  : HeadRows{s_.rows(), heads, s_.head_size};
  };
  const HeadRows queries = rows_of(s_.heads);
  const HeadRows keys = rows_of(s_.kv_heads);
  return {{kQueryNorm, queries, 0, 0, 0},
          {kKeyNorm, keys, s_.attention_width(), queries.count(),
           int64_t{queries.rows} * queries.heads}};
}

template <typename T>
absl::Status GroupedQueryMixer<T>::Attend(const Pass<T>& pass, const MixerMemory<T>& a,
                                          const T* x) const {
  CONVENE_RETURN_IF_ERROR(ColumnParallelForward(linears_.Of(s_, pass, kQkv, kQkvBias), x, At(a.qkv),
                                                *pass.around.rows, pass.stream));
  for (const HeadNorm& norm : HeadNorms()) {
    HeadNormForward(norm.shape, s_.qkv_width(), pass.Weight(norm.tensor),
                    WeightOffset(s_.family->norm), s_.norm_epsilon, At(a.qkv) + norm.column,
                    At(a.heads) + norm.kept, At(a.heads_rms) + norm.statistic, pass.stream);
  }
  return pass.around.attention->Forward(layer_, pass.documents, pass.Weight(kSinks), At(a.qkv),
                                        At(a.attention), At(a.log_sum_exp), pass.around.workspace,
                                        pass.stream);
}

template <typename T>
absl::Status GroupedQueryMixer<T>::Forward(const Pass<T>& pass, const T* x, T* y) {
  const MixerMemory<T> a = MemoryOf(pass);
  CONVENE_RETURN_IF_ERROR(Attend(pass, a, x));
  return RowParallelForward(linears_.Of(s_, pass, kAttentionOut, kAttentionOutBias),
                            At(a.attention), y, *pass.around.rows, pass.stream);
}

template <typename T>
absl::Status GroupedQueryMixer<T>::Again(const Pass<T>& pass, const T* x) {
  return Attend(pass, MemoryOf(pass), x);
}

template <typename T>
absl::Status GroupedQueryMixer<T>::Backward(const Pass<T>& pass, const T* x, const T* dy, T* dx,
                                            absl::Span<T> spare) {
  const MixerMemory<T> a = MemoryOf(pass);
  const UnitSurroundings<T>& around = pass.around;
  ChunkedRows& rows = *around.rows;
  CONVENE_RETURN_IF_ERROR(
      RowParallelBackward(linears_.Backward(s_, pass, kAttentionOut), At(a.attention), dy,
                          around.narrow, ProductGradient(pass, kAttentionOut), rows, pass.stream));
  RowBiasBackward(LinearShapeOf(s_, kAttentionOut), dy, pass.Gradient(kAttentionOutBias),
                  around.workspace, rows, pass.stream);
  const auto wide = static_cast<size_t>(s_.rows()) * s_.qkv_width();
  T* qkv = wide <= spare.size() ? spare.data() : around.wide;
  if (pass.deferred >= 0) {
    const MixerDeferred<T>& later = deferred_[pass.deferred];
    KeepGradient(pass, dy, later.out);
    qkv = At(later.qkv);
  }
  // Attention may have collectives of its own in `stream`, and never two run there and beside it.
  CONVENE_RETURN_IF_ERROR(rows.Finish(x, pass.stream));
  CONVENE_RETURN_IF_ERROR(around.attention->Backward(
      layer_, pass.documents, pass.Weight(kSinks), At(a.qkv), At(a.attention), At(a.log_sum_exp),
      around.narrow, qkv, pass.Gradient(kSinks), around.workspace, pass.stream));
  for (const HeadNorm& norm : HeadNorms()) {
    const WeightGradient dweight = pass.Gradient(norm.tensor);
    HeadNormBackward(norm.shape, s_.qkv_width(), At(a.heads) + norm.kept, pass.Weight(norm.tensor),
                     WeightOffset(s_.family->norm), At(a.heads_rms) + norm.statistic,
                     qkv + norm.column, dweight.adds, dweight.data, around.workspace, pass.stream);
  }
  ColumnBiasBackward(LinearShapeOf(s_, kQkv), qkv, ProductGradient(pass, kQkvBias),
                     around.workspace, pass.stream);
  return ColumnParallelBackward(linears_.Backward(s_, pass, kQkv), x, qkv, dx,
                                ProductGradient(pass, kQkv), rows, pass.stream);
}

template <typename T>
void GroupedQueryMixer<T>::BackwardWeight(const Pass<T>& pass, const T* x) {
  const MixerMemory<T> a = MemoryOf(pass);
  const MixerDeferred<T>& later = deferred_[pass.deferred];
  LaterWeightGradient(linears_.Later(s_, pass, kAttentionOut), At(a.attention), At(later.out),
                      pass.LaterGradient(kAttentionOut), pass.stream);
  ColumnBiasBackward(LinearShapeOf(s_, kQkv), At(later.qkv), pass.LaterGradient(kQkvBias),
                     pass.around.workspace, pass.stream);
  LaterWeightGradient(linears_.Later(s_, pass, kQkv), x, At(later.qkv), pass.LaterGradient(kQkv),
                      pass.stream);
}

CONVENE_INSTANTIATE(DeclareMixer);
CONVENE_INSTANTIATE(DeclareMixerGradients);
template class GroupedQueryMixer<float>;
template class GroupedQueryMixer<BFloat16>;

}  // namespace convene::worker

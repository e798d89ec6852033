#include "worker_runtime/model/latent_mixer.h"

#include <algorithm>
#include <utility>

#include "tools/base/status_macros.h"
#include "worker_runtime/ops/elementwise.h"
#include "worker_runtime/ops/rms_norm.h"

namespace convene::worker {
namespace {

// Of the latents' norms, whatever the family's norms have (transformers, deepseek_v3).
constexpr float kLatentEpsilon = 1e-6f;

}  // namespace

template <typename T>
LatentMixer<T>::LatentMixer(const BlockShape& shape, const LayerAttention& layer,
                            const Recompute& recompute, std::vector<MixerMemory<T>> memory,
                            std::vector<MixerDeferred<T>> deferred,
                            const BlockAdapters<T>& adapters)
    : s_(shape),
      layer_(layer),
      recompute_(recompute),
      memory_(std::move(memory)),
      deferred_(std::move(deferred)),
      linears_{.adapters = adapters} {}

// The gradient of attention's input; before it values and their gradient, behind it latents and
// their gradient.
template <typename T>
int64_t LatentMixer<T>::wide_count() const {
  const int latents = std::max(s_.query_rank, s_.key_rank);
  return int64_t{s_.rows()} * std::max(s_.qkv_width(), 2 * latents);
}

template <typename T>
ScratchSizes LatentMixer<T>::scratch(DeviceKind device, int64_t spare) const {
  const int64_t heads = s_.first_width() + s_.attention_width() + s_.key_value_width();
  ScratchSizes sizes = {.wide = wide_count() <= spare ? 0 : wide_count(),
                        .narrow = s_.rows() * heads};
  for (const int rank : {s_.query_rank, s_.key_rank}) {
    sizes.Include({.workspace_bytes = RmsNormWorkspaceBytes(s_.rows(), rank, device)});
  }
  return sizes;
}

template <typename T>
typename LatentMixer<T>::Heads LatentMixer<T>::HeadsAt(T* first, T* up) const {
  T* const keys_values = up + int64_t{s_.rows()} * s_.attention_width();
  if (s_.query_rank == 0) return {first, first, keys_values, s_.first_width()};
  return {first, up, keys_values, s_.attention_width()};
}

template <typename T>
absl::InlinedVector<typename LatentMixer<T>::Latent, 2> LatentMixer<T>::Latents(
    const Heads& heads) const {
  const int rows = s_.rows();
  const int64_t queries = int64_t{rows} * s_.query_rank;
  absl::InlinedVector<Latent, 2> latents;
  if (s_.query_rank > 0) {
    latents.push_back({kQueryNorm,
                       kQueryUp,
                       s_.query_rank,
                       0,
                       {rows, s_.attention_width(), s_.query_rank},
                       heads.queries,
                       0,
                       0});
  }
  latents.push_back({kKeyNorm,
                     kKeyValueUp,
                     s_.key_rank,
                     rotary_column() - s_.key_rank,
                     {rows, s_.key_value_width(), s_.key_rank},
                     heads.keys_values,
                     queries,
                     rows});
  return latents;
}

template <typename T>
LatentHeads LatentMixer<T>::shape() const {
  return {.rows = s_.rows(),
          .heads = s_.heads,
          .plain = s_.head_size - s_.rotary_size,
          .rotary = s_.rotary_size,
          .value = s_.value_size};
}

template <typename T>
MixerMemory<T> LatentMixer<T>::MemoryOf(const Pass<T>& pass) const {
  MixerMemory<T> a = memory_[pass.slot];
  if (pass.deferred < 0) return a;
  TakeDeferred(deferred_[pass.deferred].factors.attention, a.attention);
  TakeDeferred(deferred_[pass.deferred].factors.latents, a.latents);
  return a;
}

template <typename T>
void LatentMixer<T>::TakeValues(const T* attention, T* values, Stream& stream) const {
  CopyRows(int64_t{s_.rows()} * s_.heads, s_.value_size, attention, s_.head_size, values,
           s_.value_size, stream);
}

template <typename T>
absl::Status LatentMixer<T>::Attend(const Pass<T>& pass, const MixerMemory<T>& a,
                                    const T* x) const {
  T* const up = pass.around.narrow;
  const int64_t up_width = s_.attention_width() + s_.key_value_width();
  const Heads heads = HeadsAt(up + s_.rows() * up_width, up);
  CONVENE_RETURN_IF_ERROR(ColumnParallelForward(linears_.Of(s_, pass, kQkv), x, heads.first,
                                                *pass.around.rows, pass.stream));
  for (const Latent& latent : Latents(heads)) {
    T* const kept = At(a.heads) + latent.kept;
    T* const normed = At(a.latents) + latent.kept;
    CopyRows(s_.rows(), latent.rank, heads.first + latent.column, s_.first_width(), kept,
             latent.rank, pass.stream);
    RmsNormForward<T>(s_.rows(), latent.rank, kept, nullptr, pass.Weight(latent.norm),
                      WeightOffset(s_.family->norm), kLatentEpsilon, nullptr, normed,
                      At(a.heads_rms) + latent.statistic, pass.stream);
    LinearForward(latent.product, normed, pass.Weight(latent.up), latent.heads, pass.stream);
    const LowRank<T> adapter = linears_.adapters.Of(pass, latent.up);
    SpreadLowRank(latent.product, adapter, pass.stream);
    AddLowRank(latent.product, adapter, /*first_row=*/0, normed, latent.heads, pass.stream);
  }
  LatentHeadsForward(shape(), heads.queries, heads.query_stride, heads.keys_values,
                     heads.first + rotary_column(), s_.first_width(), At(a.qkv), pass.stream);
  return pass.around.attention->Forward(layer_, pass.documents, /*sinks=*/nullptr, At(a.qkv),
                                        At(a.attention), At(a.log_sum_exp), pass.around.workspace,
                                        pass.stream);
}

template <typename T>
absl::Status LatentMixer<T>::Forward(const Pass<T>& pass, const T* x, T* y) {
  const MixerMemory<T> a = MemoryOf(pass);
  CONVENE_RETURN_IF_ERROR(Attend(pass, a, x));
  T* const values = pass.around.narrow;
  TakeValues(At(a.attention), values, pass.stream);
  return RowParallelForward<T>(linears_.Of(s_, pass, kAttentionOut), values, y, *pass.around.rows,
                               pass.stream);
}

template <typename T>
absl::Status LatentMixer<T>::Again(const Pass<T>& pass, const T* x) {
  return Attend(pass, MemoryOf(pass), x);
}

template <typename T>
absl::Status LatentMixer<T>::Backward(const Pass<T>& pass, const T* x, const T* dy, T* dx,
                                      absl::Span<T> spare) {
  const MixerMemory<T> a = MemoryOf(pass);
  const UnitSurroundings<T>& around = pass.around;
  ChunkedRows& rows = *around.rows;
  const bool fits = wide_count() <= static_cast<int64_t>(spare.size());
  T* const wide = fits ? spare.data() : around.wide;
  T* const dvalues = wide + int64_t{s_.rows()} * s_.last_width();
  TakeValues(At(a.attention), wide, pass.stream);
  CONVENE_RETURN_IF_ERROR(RowParallelBackward<T>(linears_.Backward(s_, pass, kAttentionOut), wide,
                                                 dy, dvalues, ProductGradient(pass, kAttentionOut),
                                                 rows, pass.stream));
  T* const dattention = around.narrow;
  const int64_t count = int64_t{s_.rows()} * s_.attention_width();
  around.device->Zero(dattention, count * sizeof(T), pass.stream);
  CopyRows(int64_t{s_.rows()} * s_.heads, s_.value_size, dvalues, s_.value_size, dattention,
           s_.head_size, pass.stream);
  // The gradients take the place of dattention, which attention has read by then.
  const int64_t up_count = count + int64_t{s_.rows()} * s_.key_value_width();
  Heads heads = HeadsAt(around.narrow + up_count, around.narrow);
  if (pass.deferred >= 0) {
    const MixerDeferred<T>& later = deferred_[pass.deferred];
    KeepGradient(pass, dy, later.out);
    heads = HeadsAt(At(later.qkv), At(later.up));
  }
  // Attention may have collectives of its own in `stream`, and never two run there and beside it.
  CONVENE_RETURN_IF_ERROR(rows.Finish(x, pass.stream));
  CONVENE_RETURN_IF_ERROR(around.attention->Backward(
      layer_, pass.documents, /*sinks=*/nullptr, At(a.qkv), At(a.attention), At(a.log_sum_exp),
      dattention, wide, /*dsinks=*/{}, around.workspace, pass.stream));
  LatentHeadsBackward(shape(), wide, heads.queries, heads.query_stride, heads.keys_values,
                      heads.first + rotary_column(), s_.first_width(), pass.stream);
  for (const Latent& latent : Latents(heads)) {
    LinearWeightGradient(latent.product, At(a.latents) + latent.kept, latent.heads,
                         ProductGradient(pass, latent.up), pass.stream);
    LinearInputGradient(latent.product, pass.Weight(latent.up), latent.heads, wide, pass.stream);
    const LowRank<T> adapter = linears_.adapters.WithGradients(pass, latent.up);
    SpreadLowRank(latent.product, adapter, pass.stream);
    LowRankInnerGradient(latent.product, adapter, latent.heads, pass.stream);
    LowRankGradients(latent.product, adapter, At(a.latents) + latent.kept, latent.heads,
                     pass.stream);
    AddLowRankInputGradient(latent.product, adapter, /*first_row=*/0, wide, pass.stream);
    T* const before = wide + int64_t{s_.rows()} * latent.rank;
    const WeightGradient dweight = pass.Gradient(latent.norm);
    RmsNormBackward(s_.rows(), latent.rank, At(a.heads) + latent.kept, pass.Weight(latent.norm),
                    WeightOffset(s_.family->norm), At(a.heads_rms) + latent.statistic, wide,
                    /*add_to_dx=*/false, before, dweight.adds, dweight.data, around.workspace,
                    pass.stream);
    CopyRows(s_.rows(), latent.rank, before, latent.rank, heads.first + latent.column,
             s_.first_width(), pass.stream);
  }
  return ColumnParallelBackward<T>(linears_.Backward(s_, pass, kQkv), x, heads.first, dx,
                                   ProductGradient(pass, kQkv), rows, pass.stream);
}

template <typename T>
void LatentMixer<T>::BackwardWeight(const Pass<T>& pass, const T* x) {
  const MixerMemory<T> a = MemoryOf(pass);
  const MixerDeferred<T>& later = deferred_[pass.deferred];
  T* const values = pass.around.narrow;
  TakeValues(At(a.attention), values, pass.stream);
  LaterWeightGradient<T>(linears_.Later(s_, pass, kAttentionOut), values, At(later.out),
                         pass.LaterGradient(kAttentionOut), pass.stream);
  for (const Latent& latent : Latents(HeadsAt(At(later.qkv), At(later.up)))) {
    LinearWeightGradient(latent.product, At(a.latents) + latent.kept, latent.heads,
                         pass.LaterGradient(latent.up), pass.stream);
  }
  LaterWeightGradient<T>(linears_.Later(s_, pass, kQkv), x, At(later.qkv), pass.LaterGradient(kQkv),
                         pass.stream);
}

template class LatentMixer<float>;
template class LatentMixer<BFloat16>;

}  // namespace convene::worker

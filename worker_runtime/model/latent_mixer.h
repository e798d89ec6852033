// Multi-head latent attention (DeepSeek-V2, 2024, section 2.1; as transformers computes DeepSeek-V3
// when it trains), this rank's heads. Queries, and keys and values, come from latents of low rank,
// and all heads share the keys' rotary elements.
//
//   x ─ qkv ┬ latents of queries ─ norm ─ up ───────── queries ┐
//           ├ latents of keys, values ─ norm ─ up ─ keys, values ┼ rope ─ attention ─ out ─ y
//           └ rotary elements of the keys ─────────────────────┘
//
// Every tensor-parallel rank makes all latents, by the whole of kQkv and of the norms, and from
// them its own heads. So its gradient of a latent is a part of a sum over ranks, and all that is
// made of it is too, up to x, whose sum a column-parallel layer makes anyway: latents cost no
// collective in a pass, and the store adds up the gradients of the whole tensors once a step
// (ParameterSlice::tp_copies).
#pragma once

#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "worker_runtime/model/block_adapters.h"
#include "worker_runtime/model/block_linears.h"
#include "worker_runtime/model/block_part.h"
#include "worker_runtime/model/grouped_query_mixer.h"
#include "worker_runtime/ops/latent_heads.h"

namespace convene::worker {

template <typename T>
class LatentMixer final : public BlockPart<T> {
 public:
  // By slot and by deferred slot.
  LatentMixer(const BlockShape& shape, const LayerAttention& layer, const Recompute& recompute,
              std::vector<MixerMemory<T>> memory, std::vector<MixerDeferred<T>> deferred,
              const BlockAdapters<T>& adapters);

  ScratchSizes scratch(DeviceKind device, int64_t spare) const override;
  absl::Status Forward(const Pass<T>& pass, const T* x, T* y) override;
  bool starts_from_input() const override { return recompute_.attention; }
  absl::Status Again(const Pass<T>& pass, const T* x) override;
  absl::Status Backward(const Pass<T>& pass, const T* x, const T* dy, T* dx,
                        absl::Span<T> spare) override;
  void BackwardWeight(const Pass<T>& pass, const T* x) override;

 private:
  // The output of qkv's product, and what its latents become; or the gradients of these.
  struct Heads {
    T* first;        // first_width
    T* queries;      // query_stride; without a query rank in `first`
    T* keys_values;  // key_value_width
    int query_stride;
  };
  Heads HeadsAt(T* first, T* up) const;
  // The queries' latents, or those of keys and values.
  struct Latent {
    BlockTensor norm;
    BlockTensor up;
    int rank;
    int column;  // where they begin in a row of Heads::first
    LinearShape product;
    T* heads;           // what the product makes, or its gradient
    int64_t kept;       // where they begin in MixerMemory::heads and latents
    int64_t statistic;  // the same in heads_rms
  };
  absl::InlinedVector<Latent, 2> Latents(const Heads& heads) const;  // no heap
  LatentHeads shape() const;
  int rotary_column() const { return s_.first_width() - s_.rotary_size; }
  int64_t wide_count() const;

  MixerMemory<T> MemoryOf(const Pass<T>& pass) const;
  // Up to attention.
  absl::Status Attend(const Pass<T>& pass, const MixerMemory<T>& a, const T* x) const;
  // Attention's output without the zeros that stand behind each value.
  void TakeValues(const T* attention, T* values, Stream& stream) const;

  const BlockShape s_;
  const LayerAttention layer_;
  const Recompute recompute_;
  const std::vector<MixerMemory<T>> memory_;
  const std::vector<MixerDeferred<T>> deferred_;
  const BlockLinears<T> linears_;  // without 8-bit products
};

}  // namespace convene::worker

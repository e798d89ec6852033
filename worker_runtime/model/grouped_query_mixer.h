// The mixer of most families: causal grouped-query attention with rotary positions, this rank's
// heads.
//
//   x ─ qkv ─ norms of heads ─ rope ─ attention ─ out ─ y
#pragma once

#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "worker_runtime/device/arena.h"
#include "worker_runtime/model/block_linears.h"
#include "worker_runtime/model/block_part.h"
#include "worker_runtime/ops/head_norm.h"

namespace convene::worker {

// Tensors that the forward pass leaves for the backward pass. The comment beside a tensor is its
// width: it has rows * width elements.
template <typename T>
struct MixerMemory {
  ArenaBlock<T> qkv;  // qkv_width, as ContextAttention keeps it
  // (heads + kv_heads) head_size, and heads + kv_heads: the heads before their norms.
  ArenaBlock<T> heads;
  ArenaBlock<float> heads_rms;
  // Of latent attention: query_rank + key_rank, one behind the other. There `heads` and `heads_rms`
  // are what these were before their norms.
  ArenaBlock<T> latents;
  ArenaBlock<T> attention;        // attention_width
  ArenaBlock<float> log_sum_exp;  // heads
};
template <typename T>
void DeclareMixer(const BlockShape& shape, const Recompute& recompute, const SetDeclarer& declare,
                  MixerMemory<T>& memory);

// The input half of a backward pass leaves this for the weight half.
template <typename T>
struct MixerDeferred {
  ArenaBlock<T> qkv;       // first_width: the gradient
  ArenaBlock<T> up;        // of latent attention, of queries and of keys and values: the gradients
  ArenaBlock<T> out;       // hidden: the gradient
  MixerMemory<T> factors;  // what is recomputed of these
};

// Declares what lies between the halves of a backward pass, but for `factors`.
template <typename T>
void DeclareMixerGradients(const BlockShape& shape, Arena& arena, MixerDeferred<T>& memory);

template <typename T>
class GroupedQueryMixer final : public BlockPart<T> {
 public:
  // By slot and by deferred slot. Borrows `linears`.
  GroupedQueryMixer(const BlockShape& shape, const LayerAttention& layer,
                    const Recompute& recompute, std::vector<MixerMemory<T>> memory,
                    std::vector<MixerDeferred<T>> deferred, const BlockLinears<T>& linears);

  ScratchSizes scratch(DeviceKind device, int64_t spare) const override;
  absl::Status Forward(const Pass<T>& pass, const T* x, T* y) override;
  bool starts_from_input() const override { return recompute_.attention; }
  absl::Status Again(const Pass<T>& pass, const T* x) override;
  absl::Status Backward(const Pass<T>& pass, const T* x, const T* dy, T* dx,
                        absl::Span<T> spare) override;
  void BackwardWeight(const Pass<T>& pass, const T* x) override;

 private:
  MixerMemory<T> MemoryOf(const Pass<T>& pass) const;
  // A norm of heads: of all queries, or of all keys.
  struct HeadNorm {
    BlockTensor tensor;
    HeadRows shape;
    int column;         // where the heads begin in a row of qkv
    int64_t kept;       // where they begin in MixerMemory::heads
    int64_t statistic;  // the same in heads_rms
  };
  absl::InlinedVector<HeadNorm, 2> HeadNorms() const;  // no heap
  // Up to attention.
  absl::Status Attend(const Pass<T>& pass, const MixerMemory<T>& a, const T* x) const;

  const BlockShape s_;
  const LayerAttention layer_;
  const Recompute recompute_;
  const std::vector<MixerMemory<T>> memory_;
  const std::vector<MixerDeferred<T>> deferred_;
  const BlockLinears<T>& linears_;
};

}  // namespace convene::worker

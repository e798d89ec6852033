// Rotary positions and attention of a row whose tokens are cut over context-parallel ranks.
//
//   ring       own keys and values go to the next rank while the queries meet those of the rank
//              before; each part's result is merged (Liu et al. 2023, Ring Attention). In the
//              backward pass the sum of a key's gradients goes round behind the keys
//   allgather  all ranks' keys and values are gathered, and gathered again for the backward pass,
//              which reduces their gradients to the ranks that have the keys
//   ulysses    all-to-all: all tokens of some heads on every rank, plain attention, and back
//
// A group of one is the plain op, and nothing else. With a cache of keys and values, which only a
// group of one may have, runs of tokens go on with sequences that have tokens already.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "worker_runtime/comm/collective.h"
#include "worker_runtime/device/arena.h"
#include "worker_runtime/device/device.h"
#include "worker_runtime/device/side_stream.h"
#include "worker_runtime/ops/attention.h"
#include "worker_runtime/ops/rope.h"
#include "worker_runtime/parallel/context_cut.h"
#include "worker_runtime/parallel/key_value_cache.h"
#include "worker_runtime/parallel/linear.h"

namespace convene::worker {

// The shape of the attention op on a rank whose own tokens and heads are `local`.
AttentionShape ContextAttentionShape(const ContextCut& cut, AttentionShape local);

// The attention of one layer, as far as it differs from the others.
struct LayerAttention {
  static constexpr int kNoRope = -1;  // positions are no affair of its attention
  int window = 0;                     // AttentionShape::window
  int rope = 0;                       // of ContextAttention::Options::ropes
  int cached = 0;                     // the layer's number in the cache
};

struct RopeKind {
  double theta = 0;
  RopeScaling scaling;
};

// T: float or BFloat16. Not thread-safe. Every call overwrites the same scratch.
template <typename T>
class ContextAttention {
 public:
  struct Options {
    AttentionShape local;  // of this rank's tokens and heads
    ContextCut cut;
    std::vector<RopeKind> ropes;  // that layers have
    int rotary_size = 0;          // so many elements of a head are turned, from the first on
    bool has_sinks = false;
    bool overlaps = true;  // a ring's messages travel beside the arithmetic
    // Borrowed. Not null: Forward goes on with the sequences of the cache's runs, and there is no
    // Backward. REQUIRES then: the cut has one rank, and no documents are told apart.
    const KeyValueCache* cache = nullptr;
  };

  // Declares tables and scratch. Borrows all references.
  ContextAttention(const Options& options, Collective& cp, Device& device, Arena& arena);

  // Call it once the arena is built.
  void Bind();

  size_t workspace_bytes() const;

  // `documents`: of the op's queries (ContextAttentionShape): of this rank's tokens, for Ulysses of
  // the whole rows. sinks: (heads), as ops/attention_sink.h has them; null: none. qkv: (batch,
  // local length, qkv_width) of this rank's tokens; it becomes what Backward wants of it. out:
  // (batch, local length, heads * head_size). log_sum_exp: (batch * local length * heads), for
  // Backward. Errors: the collective's.
  absl::Status Forward(const LayerAttention& layer, const Documents& documents, const T* sinks,
                       T* qkv, T* out, float* log_sum_exp, const Workspace& workspace,
                       Stream& stream);

  // dout is lost; dqkv, of qkv's shape, is overwritten. dsinks: (heads), or no place; this rank's
  // part of the sum over cp. Errors: the collective's.
  absl::Status Backward(const LayerAttention& layer, const Documents& documents, const T* sinks,
                        const T* qkv, const T* out, const float* log_sum_exp, T* dout, T* dqkv,
                        const WeightGradient& dsinks, const Workspace& workspace, Stream& stream);

 private:
  bool uses(ContextMethod method) const { return cut_.size > 1 && cut_.method == method; }
  int64_t rows() const { return int64_t{local_.batch} * local_.sequence_length; }
  int query_width() const { return local_.heads * local_.head_size; }
  int key_width() const { return 2 * local_.kv_heads * local_.head_size; }  // keys and values
  // Keys and values of one rank's tokens: of a row, of one of its chunks, of all rows.
  int64_t row_keys() const { return int64_t{local_.sequence_length} * key_width(); }
  int chunk_keys() const { return cut_.local_length() / ContextChunks(cut_.method) * key_width(); }
  int64_t key_count() const { return local_.batch * row_keys(); }
  // Of the op's heads among this rank's.
  int first_head() const { return uses(ContextMethod::kUlysses) ? cut_.rank * op_.heads : 0; }
  // From the op's out and its gradient.
  void SinkBackward(const T* sinks, const T* out, const float* log_sum_exp, const T* dout,
                    const WeightGradient& dsinks, const Workspace& workspace, Stream& stream) const;
  // Of the queries, and of the keys of the rank `owner`; null where no op is told positions.
  const int32_t* Positions(int owner) const;
  void Rotate(const LayerAttention& layer, const Documents& documents, bool inverse, T* qkv,
              Stream& stream) const;
  // Positions that the tables have.
  int table_length() const {
    return options_.cache == nullptr ? cut_.sequence_length : options_.cache->shape().context;
  }
  int64_t angles() const { return int64_t{table_length()} * options_.rotary_size / 2; }
  void PackKeys(const T* qkv, T* keys, Stream& stream) const;

  // All tokens' heads of this rank from all heads of its tokens, and back; in place is fine.
  // `with_keys`: of tensors of qkv_width; else of the queries alone.
  absl::Status ToHeads(bool with_keys, const T* tokens, T* heads, Stream& stream) const;
  absl::Status ToTokens(bool with_keys, const T* heads, T* tokens, Stream& stream) const;
  // Visits the columns of each rank's heads: (rank, first column of a token, first column of the
  // rank's share of it, columns).
  template <typename Visit>
  void ForHeads(bool with_keys, const Visit& visit) const;

  absl::Status GatherKeys(const T* qkv, Stream& stream) const;
  absl::Status ReduceKeys(T* dqkv, Stream& stream) const;
  // Visits the chunks of all ranks' keys: (where it begins by rank, and by position).
  template <typename Visit>
  void ForChunks(const Visit& visit) const;

  // Keys and values that stand side by side, (batch, row_keys()), from a token on.
  template <typename E>
  void SetRingKeys(E* data, int first_key, QueriesKeysValues<E>& all) const {
    E* const keys = data + int64_t{first_key} * key_width();
    all.keys = {keys, row_keys(), key_width()};
    all.values = {keys + key_width() / 2, row_keys(), key_width()};
  }
  AttentionShape OpOf(const LayerAttention& layer) const {
    AttentionShape op = op_;
    op.window = layer.window;
    return op;
  }
  // The attention of `count` tokens of one run to the tokens that their sequence has with them.
  AttentionShape CachedOp(const LayerAttention& layer, int count, int keys) const;
  void CachedForward(const LayerAttention& layer, const T* sinks, T* qkv, T* out,
                     float* log_sum_exp, const Workspace& workspace, Stream& stream) const;
  // The tokens that meet at a step of a ring, and the shape of their attention. Rows that are
  // packed always meet as a whole.
  struct Meeting {
    RingPart part;
    AttentionShape shape;
  };
  Meeting MeetingWith(const LayerAttention& layer, int owner) const;
  // Of queries that are not all queries, out, log_sum_exp and dout are brought together in scratch.
  struct QueryResults {
    const T* out = nullptr;
    const float* log_sum_exp = nullptr;
    const T* dout = nullptr;
  };
  QueryResults Gathered(const RingPart& part, const QueryResults& all, Stream& stream) const;

  // At step t of a ring a rank has the keys of the t-th rank before it.
  int Owner(int step) const { return (cut_.rank - step + cut_.size) % cut_.size; }
  T* Keys(int step) const { return At(ring_keys_[step % 2]); }
  float* KeySums(int step) const { return At(ring_sums_[step % 2]); }
  template <typename E>
  absl::Status Shift(E* from, E* to, Stream& stream) const;
  // Work that `stream` is given from now on begins after all shifts.
  absl::Status Join(Stream& stream) {
    side_->Join(stream);
    return cp_.Check();
  }
  absl::Status RingForward(const LayerAttention& layer, const Documents& documents, const T* qkv,
                           T* out, float* log_sum_exp, const Workspace& workspace, Stream& stream);
  absl::Status RingBackward(const LayerAttention& layer, const Documents& documents, const T* qkv,
                            const T* out, const float* log_sum_exp, const T* dout, T* dqkv,
                            const Workspace& workspace, Stream& stream);

  const AttentionShape local_;
  const ContextCut cut_;
  const AttentionShape op_;
  const Options options_;
  Collective& cp_;
  Device& device_;
  const std::vector<int32_t> positions_;  // (ranks, local length); empty where heads are split

  ArenaBlock<float> cosines_, sines_;  // (ropes, sequence length, head size / 2)
  ArenaBlock<int32_t> device_positions_;
  ArenaBlock<T> sent_, arrived_, heads_;             // Ulysses
  ArenaBlock<T> gathered_, keys_, key_gradients_;    // all-gather
  ArenaBlock<T> ring_keys_[2], part_out_;            // ring
  ArenaBlock<float> ring_sums_[2], part_sums_;       // ring: of the keys' gradients
  ArenaBlock<float> query_sums_, part_log_sum_exp_;  // ring: of out, or of its gradient
  std::optional<SideStream> side_;                   // set by Bind
};

}  // namespace convene::worker
